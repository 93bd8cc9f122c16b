//! Jinja's filters for strings that MiniJinja lacks or that have other arguments there.

use std::sync::LazyLock;

use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Environment, Error, State};
use regex::Regex;

use super::calls::{add_filter, split_kwargs, Args};
use super::format;
use super::operators::{charge, html_escape};
use super::text_methods::capitalize;
use super::text_search::{lines, replace};
use super::values::{invalid, number, pairs, to_text};

const MAX_WIDTH: i64 = 100_000;

pub fn register(environment: &mut Environment) {
    environment.add_filter("capitalize", |value: &Value| {
        to_text(value).map(|text| capitalize(&text))
    });
    add_filter(environment, "center", center);
    environment.add_filter("e", escape);
    environment.add_filter("escape", escape);
    add_filter(environment, "filesizeformat", file_size);
    environment.add_filter("forceescape", force_escape);
    add_filter(environment, "format", format_filter);
    add_filter(environment, "indent", indent);
    add_filter(environment, "replace", replace_filter);
    environment.add_filter("striptags", strip_tags);
    add_filter(environment, "truncate", truncate);
    environment.add_filter("urlencode", url_encode);
    environment.add_filter("wordcount", word_count);
    add_filter(environment, "xmlattr", xml_attributes);
}

fn force_escape(value: &Value) -> Result<Value, Error> {
    Ok(Value::from_safe_string(html_escape(&to_text(value)?)))
}

fn escape(value: &Value) -> Result<Value, Error> {
    if value.is_safe() {
        return Ok(value.clone());
    }
    force_escape(value)
}

fn width(args: &Args, index: usize, default: i64) -> Result<usize, Error> {
    let width = args.integer_or(index, default)?.max(0);
    if width > MAX_WIDTH {
        return Err(invalid(format!(
            "{width}: wider than {MAX_WIDTH} characters"
        )));
    }
    Ok(width as usize)
}

fn center(_state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let args = Args::new("center", args, &["value", "width"])?;
    let text = to_text(args.required(0)?)?;
    let width = width(&args, 1, 80)?;
    let missing = width.saturating_sub(text.chars().count());
    let left = missing / 2 + (missing & width & 1);
    let spaces = |count: usize| " ".repeat(count);
    Ok(Value::from(spaces(left) + &text + &spaces(missing - left)))
}

/// `pattern | format(values)`, which is `pattern % values`.
fn format_filter(_state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let (positional, kwargs) = split_kwargs(args);
    let (pattern, values) = positional
        .split_first()
        .ok_or_else(|| invalid("format: no text"))?;
    let values = match kwargs {
        Some(_) if !values.is_empty() => {
            return Err(invalid("format: values by position and by name"));
        }
        Some(kwargs) => Value::from_pairs(pairs(&Value::from(kwargs))?),
        None => Value::from(Tuple::from(values.to_vec())),
    };
    format::percent(&to_text(pattern)?, &values).map(Value::from)
}

fn indent(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let args = Args::new("indent", args, &["s", "width", "first", "blank"])?;
    let text = to_text(args.required(0)?)? + "\n";
    let indentation = match args.get(1).and_then(Value::as_str) {
        Some(text) => text.to_string(),
        None => " ".repeat(width(&args, 1, 4)?),
    };
    let lines = lines(&text, false);
    charge(state, lines.len().saturating_mul(indentation.len()))?;
    let mut out = String::with_capacity(text.len());
    for (index, line) in lines.into_iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let is_indented = if index == 0 {
            args.is_true(2, false)
        } else {
            args.is_true(3, false) || !line.is_empty()
        };
        if is_indented {
            out.push_str(&indentation);
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}

fn replace_filter(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let args = Args::new("replace", args, &["s", "old", "new", "count"])?;
    let text = |index| to_text(args.required(index)?);
    let count = args.optional_integer(3)?.unwrap_or(-1);
    let replaced = replace(&text(0)?, &text(1)?, &text(2)?, count)?;
    charge(state, replaced.len())?;
    Ok(Value::from(replaced))
}

fn truncate(_state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let names = &["s", "length", "killwords", "end", "leeway"];
    let args = Args::new("truncate", args, names)?;
    let text = to_text(args.required(0)?)?;
    let end = args.text_or(3, "...")?;
    let length = args.integer_or(1, 255)?;
    let kept = length.saturating_sub(end.chars().count() as i64);
    let leeway = args.optional_integer(4)?.unwrap_or(5);
    if kept < 0 || leeway < 0 {
        return Err(invalid("truncate: the length or leeway is too small"));
    }
    if text.chars().count() as i64 <= length.saturating_add(leeway) {
        return Ok(Value::from(text));
    }
    let mut kept: String = text.chars().take(kept as usize).collect();
    if !args.is_true(2, false) {
        if let Some((words, _)) = kept.rsplit_once(' ') {
            kept = words.to_string();
        }
    }
    Ok(Value::from(kept + end))
}

fn word_count(value: &Value) -> Result<usize, Error> {
    static WORD: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"[\p{L}\p{N}_]+").expect("constant pattern"));
    Ok(WORD.find_iter(&to_text(value)?).count())
}

/// Removes tags and comments, and replaces runs of spaces by one space.
fn strip_tags(value: &Value) -> Result<Value, Error> {
    static TAG: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?s)<!--.*?-->|<[^>]*>").expect("constant pattern"));
    let text = to_text(value)?;
    let text = TAG.replace_all(&text, "");
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    let entities = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&#34;", "\""),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&amp;", "&"),
    ];
    let unescape = |text: String, (from, to): (&str, &str)| text.replace(from, to);
    Ok(Value::from(entities.into_iter().fold(text, unescape)))
}

fn quoted(text: &str, safe: &str, space: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = char::from(byte);
        match c {
            ' ' => out.push_str(space),
            c if c.is_ascii_alphanumeric() || "_.-~".contains(c) || safe.contains(c) => out.push(c),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Escapes a string for a path, or pairs for a query.
fn url_encode(value: &Value) -> Result<Value, Error> {
    let entries = match value.kind() {
        ValueKind::Map => pairs(value)?,
        ValueKind::Seq | ValueKind::Iterable => {
            let mut entries = Vec::new();
            for pair in value.try_iter()?.checked() {
                let pair = pair?;
                let item = |index: usize| pair.get_item(&Value::from(index));
                entries.push((item(0)?, item(1)?));
            }
            entries
        }
        _ => return Ok(Value::from(quoted(&to_text(value)?, "/", "%20"))),
    };
    let part = |value: &Value| to_text(value).map(|text| quoted(&text, "", "+"));
    let mut query = Vec::new();
    for (key, value) in entries {
        query.push(format!("{}={}", part(&key)?, part(&value)?));
    }
    Ok(Value::from(query.join("&")))
}

fn xml_attributes(_state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let args = Args::new("xmlattr", args, &["d", "autospace"])?;
    let mut attributes = Vec::new();
    for (key, value) in pairs(args.required(0)?)? {
        if value.is_none() || value.is_undefined() {
            continue;
        }
        let key = to_text(&key)?;
        if key.contains(|c: char| c.is_whitespace() || "/>=".contains(c)) {
            return Err(invalid(format!("xmlattr: {key:?} is not a name")));
        }
        let (key, value) = (html_escape(&key), html_escape(&to_text(&value)?));
        attributes.push(format!("{key}=\"{value}\""));
    }
    let space = args.is_true(1, true) && !attributes.is_empty();
    let prefix = if space { " " } else { "" };
    Ok(Value::from(prefix.to_string() + &attributes.join(" ")))
}

fn file_size(_state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let args = Args::new("filesizeformat", args, &["value", "binary"])?;
    let value = args.required(0)?;
    let parsed = value.as_str().and_then(|text| text.trim().parse().ok());
    let bytes: f64 = number(value)
        .or(parsed)
        .ok_or_else(|| invalid("filesizeformat: not a number"))?;
    let binary = args.is_true(1, false);
    let (base, units) = match binary {
        true => (
            1024.0,
            ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"],
        ),
        false => (1000.0, ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"]),
    };
    if bytes == 1.0 {
        return Ok(Value::from("1 Byte"));
    }
    if bytes < base {
        return Ok(Value::from(format!("{} Bytes", bytes.trunc())));
    }
    let mut unit = base;
    for name in &units[..units.len() - 1] {
        unit *= base;
        if bytes < unit {
            return Ok(Value::from(format!("{:.1} {name}", base * bytes / unit)));
        }
    }
    unit *= base;
    let name = units[units.len() - 1];
    Ok(Value::from(format!("{:.1} {name}", base * bytes / unit)))
}
