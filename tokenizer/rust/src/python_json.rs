//! JSON written byte for byte as Python's `json.dumps` writes it: chat templates print tool
//! definitions with it, so another spacing would be another prompt than the model was trained on.

use serde_json::{Map, Number, Value};

pub struct Style {
    pub ensure_ascii: bool,
    /// What one level of nesting adds at the start of a line; None keeps all on one line.
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
}

impl Style {
    /// The separators that `json.dumps` picks when it is given none.
    pub fn new(indent: Option<String>) -> Self {
        Self {
            ensure_ascii: false,
            item_separator: if indent.is_some() { "," } else { ", " }.to_string(),
            key_separator: ": ".to_string(),
            indent,
            sort_keys: false,
        }
    }
}

pub fn to_string(value: &Value, style: &Style) -> String {
    let mut out = String::new();
    write_value(&mut out, value, style, 0);
    out
}

fn write_value(out: &mut String, value: &Value, style: &Style, depth: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(out, number),
        Value::String(text) => write_text(out, text, style),
        Value::Array(items) => write_array(out, items, style, depth),
        Value::Object(map) => write_object(out, map, style, depth),
    }
}

fn write_array(out: &mut String, items: &[Value], style: &Style, depth: usize) {
    if items.is_empty() {
        out.push_str("[]");
        return;
    }
    out.push('[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        break_line(out, style, depth + 1);
        write_value(out, item, style, depth + 1);
    }
    break_line(out, style, depth);
    out.push(']');
}

fn write_object(out: &mut String, map: &Map<String, Value>, style: &Style, depth: usize) {
    if map.is_empty() {
        out.push_str("{}");
        return;
    }
    let mut entries: Vec<_> = map.iter().collect();
    if style.sort_keys {
        // Python orders strings by code point, which is the order of their UTF-8 bytes.
        entries.sort_by(|a, b| a.0.cmp(b.0));
    }
    out.push('{');
    for (index, (key, item)) in entries.into_iter().enumerate() {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        break_line(out, style, depth + 1);
        write_text(out, key, style);
        out.push_str(&style.key_separator);
        write_value(out, item, style, depth + 1);
    }
    break_line(out, style, depth);
    out.push('}');
}

fn break_line(out: &mut String, style: &Style, depth: usize) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        for _ in 0..depth {
            out.push_str(indent);
        }
    }
}

fn write_number(out: &mut String, number: &Number) {
    match number.as_f64().filter(|_| number.is_f64()) {
        Some(float) => out.push_str(&float_repr(float)),
        None => out.push_str(&number.to_string()),
    }
}

/// Python's repr of a float: Rust's shortest digits with a signed exponent of two digits or more.
pub fn float_repr(float: f64) -> String {
    let digits = format!("{float:?}");
    let Some((mantissa, exponent)) = digits.split_once('e') else {
        return digits;
    };
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{exponent:0>2}")
}

fn write_text(out: &mut String, text: &str, style: &Style) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (style.ensure_ascii && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
