//! The methods of Python's `str`.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::calls::Args;
use super::format;
use super::operators::charge;
use super::text_search::{self as search, Range};
use super::unicode;
use super::values::{invalid, type_name};

pub const NAMES: [&str; 43] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];

/// Wider padding and tabs are refused: no prompt needs them.
const MAX_WIDTH: i64 = 1_000_000;

pub fn call(state: &mut State, text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    charge(state, text.len())?;
    if let Some(result) = without_arguments(text, method) {
        Args::positional("a method without arguments", args, &[])?;
        return Ok(result);
    }
    match method {
        "center" | "ljust" | "rjust" => pad(text, method, args),
        "zfill" => zfill(text, args),
        "count" | "find" | "index" | "rfind" | "rindex" => find(text, method, args),
        "startswith" | "endswith" => has_affix(text, method, args),
        "removeprefix" | "removesuffix" => remove_affix(text, method, args),
        "strip" | "lstrip" | "rstrip" => strip(text, method, args),
        "split" | "rsplit" => split(text, method, args),
        "partition" | "rpartition" => partition(text, method, args),
        "splitlines" => {
            let args = Args::new("splitlines", args, &["keepends"])?;
            let lines = search::lines(text, args.is_true(0, false));
            Ok(lines.into_iter().map(Value::from).collect())
        }
        "expandtabs" => expand_tabs(text, args),
        "replace" => {
            let args = Args::positional("replace", args, &["old", "new", "count"])?;
            let (old, new) = (args.text(0)?, args.text(1)?);
            let replaced = search::replace(text, old, new, args.integer_or(2, -1)?)?;
            charge(state, replaced.len())?;
            Ok(Value::from(replaced))
        }
        "join" => {
            let args = Args::positional("join", args, &["iterable"])?;
            join(state, text, args.required(0)?)
        }
        "format" => format::str_format(text, args).map(Value::from),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn without_arguments(text: &str, method: &str) -> Option<Value> {
    let all = |is: fn(char) -> bool| !text.is_empty() && text.chars().all(is);
    let some_and_none = |some: fn(char) -> bool, none: fn(char) -> bool| {
        text.chars().any(some) && !text.chars().any(|c| none(c) || unicode::is_title(c))
    };
    Some(Value::from(match method {
        "upper" => return Some(Value::from(text.to_uppercase())),
        "lower" => return Some(Value::from(text.to_lowercase())),
        "casefold" => return Some(Value::from(unicode::fold_case(text))),
        "swapcase" => return Some(Value::from(swap_case(text))),
        "capitalize" => return Some(Value::from(capitalize(text))),
        "title" => return Some(Value::from(title(text))),
        "isalnum" => all(unicode::is_alphanumeric),
        "isalpha" => all(unicode::is_alpha),
        "isascii" => text.is_ascii(),
        "isdecimal" => all(unicode::is_decimal),
        "isdigit" => all(unicode::is_digit),
        "isnumeric" => all(unicode::is_numeric),
        "isspace" => all(unicode::is_space),
        "isprintable" => text.chars().all(unicode::is_printable),
        "isidentifier" => is_identifier(text),
        "islower" => some_and_none(char::is_lowercase, char::is_uppercase),
        "isupper" => some_and_none(char::is_uppercase, char::is_lowercase),
        "istitle" => is_title(text),
        _ => return None,
    }))
}

/// Lower case of everything after the first character; a sigma at the end of a word has its own
/// form, so the text is lowered as a whole.
pub fn capitalize(text: &str) -> String {
    let Some(first) = text.chars().next() else {
        return String::new();
    };
    let lowered = text.to_lowercase();
    let skipped = first.to_lowercase().map(char::len_utf8).sum::<usize>();
    unicode::title(first) + &lowered[skipped..]
}

fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut word = String::new();
    for c in text.chars() {
        if unicode::is_cased(c) {
            word.push(c);
        } else {
            out.push_str(&capitalize(&word));
            word.clear();
            out.push(c);
        }
    }
    out + &capitalize(&word)
}

fn swap_case(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_uppercase() {
            out.extend(c.to_lowercase());
        } else if c.is_lowercase() {
            out.extend(c.to_uppercase());
        } else {
            out.push(c);
        }
    }
    out
}

fn is_identifier(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(unicode::is_identifier_start)
        && chars.all(unicode::is_identifier_continue)
}

fn is_title(text: &str) -> bool {
    let (mut found, mut after_cased) = (false, false);
    for c in text.chars() {
        let starts = c.is_uppercase() || unicode::is_title(c);
        if (starts && after_cased) || (c.is_lowercase() && !after_cased) {
            return false;
        }
        after_cased = starts || c.is_lowercase();
        found |= after_cased;
    }
    found
}

fn width(args: &Args) -> Result<usize, Error> {
    args.required(0)?;
    match args.integer_or(0, 0)? {
        width @ ..=MAX_WIDTH => Ok(width.max(0) as usize),
        width => Err(invalid(format!(
            "{width}: wider than {MAX_WIDTH} characters"
        ))),
    }
}

fn pad(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let args = Args::positional("padding", args, &["width", "fillchar"])?;
    let fill = args.text_or(1, " ")?;
    if fill.chars().count() != 1 {
        return Err(invalid("the fill character must be one character"));
    }
    let (width, length) = (width(&args)?, text.chars().count());
    let missing = width.saturating_sub(length);
    let left = match method {
        "ljust" => 0,
        "rjust" => missing,
        // If the padding is odd, Python puts the extra character on the left for an odd width.
        _ => missing / 2 + (missing & width & 1),
    };
    Ok(Value::from(
        fill.repeat(left) + text + &fill.repeat(missing - left),
    ))
}

fn zfill(text: &str, args: &[Value]) -> Result<Value, Error> {
    let args = Args::positional("zfill", args, &["width"])?;
    let zeros = "0".repeat(width(&args)?.saturating_sub(text.chars().count()));
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let sign = &text[..text.len() - digits.len()];
    Ok(Value::from([sign, &zeros, digits].concat()))
}

fn find(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let args = Args::positional("search", args, &["sub", "start", "end"])?;
    let part = args.text(0)?;
    let range = Range::of(text, args.optional_integer(1)?, args.optional_integer(2)?);
    if method == "count" {
        return Ok(Value::from(range.map_or(0, |range| range.count(part))));
    }
    let backwards = method.starts_with('r');
    match range.and_then(|range| range.find(part, backwards)) {
        Some(position) => Ok(Value::from(position)),
        None if method.ends_with("index") => Err(invalid(format!("{method}: not in the text"))),
        None => Ok(Value::from(-1)),
    }
}

fn has_affix(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let args = Args::positional("affix", args, &["affix", "start", "end"])?;
    let affix = args.required(0)?;
    let affixes = match affix.kind() {
        ValueKind::String => vec![affix.clone()],
        ValueKind::Seq if affix.is_tuple() => {
            affix.try_iter()?.checked().collect::<Result<_, _>>()?
        }
        _ => {
            let given = type_name(affix);
            return Err(invalid(format!(
                "{method}: needs text or a tuple of texts, not {given}"
            )));
        }
    };
    let Some(range) = Range::of(text, args.optional_integer(1)?, args.optional_integer(2)?) else {
        return Ok(Value::from(false));
    };
    for affix in &affixes {
        let affix = super::values::text(affix, "a tuple of affixes")?;
        let has = match method {
            "startswith" => range.text.starts_with(affix),
            _ => range.text.ends_with(affix),
        };
        if has {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

fn remove_affix(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let args = Args::positional("affix", args, &["affix"])?;
    let affix = args.text(0)?;
    let rest = match method {
        "removeprefix" => text.strip_prefix(affix),
        _ => text.strip_suffix(affix),
    };
    Ok(Value::from(rest.unwrap_or(text)))
}

fn strip(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let args = Args::positional("strip", args, &["chars"])?;
    let chars: Option<Vec<char>> = match args.given(0) {
        Some(_) => Some(args.text(0)?.chars().collect()),
        None => None,
    };
    let stripped = |c: char| match &chars {
        Some(chars) => chars.contains(&c),
        None => unicode::is_space(c),
    };
    Ok(Value::from(match method {
        "lstrip" => text.trim_start_matches(stripped),
        "rstrip" => text.trim_end_matches(stripped),
        _ => text.trim_matches(stripped),
    }))
}

fn split(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let args = Args::new("split", args, &["sep", "maxsplit"])?;
    // A negative limit means no limit.
    let limit = usize::try_from(args.integer_or(1, -1)?).unwrap_or(usize::MAX);
    let separator = match args.given(0) {
        Some(_) => Some(args.text(0)?),
        None => None,
    };
    let parts = match (separator, method == "rsplit") {
        (Some(""), _) => return Err(invalid(format!("{method}: the separator is empty"))),
        (Some(separator), false) => text.splitn(limit.saturating_add(1), separator).collect(),
        (Some(separator), true) => {
            let mut parts: Vec<_> = text.rsplitn(limit.saturating_add(1), separator).collect();
            parts.reverse();
            parts
        }
        (None, false) => search::split_space(text, limit),
        (None, true) => search::rsplit_space(text, limit),
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

fn partition(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let args = Args::positional("partition", args, &["sep"])?;
    let separator = args.text(0)?;
    if separator.is_empty() {
        return Err(invalid(format!("{method}: the separator is empty")));
    }
    let parts = match method {
        "partition" => text.split_once(separator),
        _ => text.rsplit_once(separator),
    };
    Ok(match (parts, method) {
        (Some((before, after)), _) => Value::from((before, separator, after)),
        (None, "partition") => Value::from((text, "", "")),
        (None, _) => Value::from(("", "", text)),
    })
}

fn expand_tabs(text: &str, args: &[Value]) -> Result<Value, Error> {
    let args = Args::new("expandtabs", args, &["tabsize"])?;
    let size = args.integer_or(0, 8)?;
    if size > MAX_WIDTH {
        return Err(invalid(format!(
            "expandtabs: wider than {MAX_WIDTH} characters"
        )));
    }
    let size = size.max(0) as usize;
    let (mut out, mut column) = (String::new(), 0);
    for c in text.chars() {
        match c {
            '\t' if size > 0 => {
                let spaces = size - column % size;
                out.push_str(&" ".repeat(spaces));
                column += spaces;
            }
            '\t' => {}
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            c => {
                out.push(c);
                column += 1;
            }
        }
    }
    Ok(Value::from(out))
}

fn join(state: &mut State, separator: &str, parts: &Value) -> Result<Value, Error> {
    if parts.is_none() {
        return Err(invalid("join: none is not iterable"));
    }
    let mut out = String::new();
    for (index, part) in parts.try_iter()?.checked().enumerate() {
        if index > 0 {
            out.push_str(separator);
        }
        out.push_str(super::values::text(&part?, "join: every item")?);
    }
    charge(state, out.len())?;
    Ok(Value::from(out))
}
