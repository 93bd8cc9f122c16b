//! Positions in text, counted in characters as in Python, and the methods that split text.

use minijinja::Error;

use super::unicode::{is_line_end, is_space};
use super::values::invalid;

const MAX_REPLACED_BYTES: usize = 100_000_000;

/// A part of a text, from Python's start to its end.
pub struct Range<'a> {
    pub text: &'a str,
    /// The number of characters before it.
    start: usize,
}

impl<'a> Range<'a> {
    /// None if the start is after the end or beyond the text: then nothing is found, not even "".
    pub fn of(text: &'a str, start: Option<i64>, end: Option<i64>) -> Option<Self> {
        if start.is_none() && end.is_none() {
            return Some(Self { text, start: 0 });
        }
        let length = text.chars().count() as i64;
        let from_end = |bound: i64| {
            if bound < 0 {
                bound.saturating_add(length).max(0)
            } else {
                bound
            }
        };
        let start = from_end(start.unwrap_or(0));
        let end = from_end(end.unwrap_or(length)).min(length);
        if start > end {
            return None;
        }
        let byte = |position: i64| {
            let mut indices = text.char_indices();
            indices.nth(position as usize).map_or(text.len(), |at| at.0)
        };
        Some(Self {
            text: &text[byte(start)..byte(end)],
            start: start as usize,
        })
    }

    pub fn find(&self, part: &str, backwards: bool) -> Option<usize> {
        let byte = if backwards {
            self.text.rfind(part)
        } else {
            self.text.find(part)
        };
        byte.map(|byte| self.start + self.text[..byte].chars().count())
    }

    pub fn count(&self, part: &str) -> usize {
        self.text.matches(part).count()
    }
}

/// `text.split(None, limit)`: splits at runs of spaces and ignores spaces at both ends.
pub fn split_space(text: &str, limit: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        if parts.len() == limit {
            parts.push(rest);
            break;
        }
        let end = rest.find(is_space).unwrap_or(rest.len());
        parts.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(is_space);
    }
    parts
}

pub fn rsplit_space(text: &str, limit: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() {
        if parts.len() == limit {
            parts.push(rest);
            break;
        }
        let space = rest.char_indices().rev().find(|(_, c)| is_space(*c));
        let start = space.map_or(0, |(at, c)| at + c.len_utf8());
        parts.push(&rest[start..]);
        rest = rest[..start].trim_end_matches(is_space);
    }
    parts.reverse();
    parts
}

pub fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let Some((at, end)) = rest.char_indices().find(|(_, c)| is_line_end(*c)) else {
            lines.push(rest);
            break;
        };
        let mut next = at + end.len_utf8();
        if rest[at..].starts_with("\r\n") {
            next += 1;
        }
        lines.push(&rest[..if keep_ends { next } else { at }]);
        rest = &rest[next..];
    }
    lines
}

/// `text.replace(old, new, count)`; a negative count means no limit.
pub fn replace(text: &str, old: &str, new: &str, count: i64) -> Result<String, Error> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let found = text.matches(old).take(count).count();
    let size = found.checked_mul(new.len());
    if !size.is_some_and(|size| size <= MAX_REPLACED_BYTES) {
        return Err(invalid("replace: the result is too large"));
    }
    Ok(text.replacen(old, new, count))
}
