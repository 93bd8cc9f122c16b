//! Methods of Python's lists and dicts, and the table of which methods a value has. Methods of
//! strings are in `text_methods`.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::calls::Args;
use super::objects::{is_dict, BoundMethod, DictView};
use super::text_methods;
use super::values::{invalid, is_sequence, pairs, type_name};

const DICT_METHODS: [&str; 11] = [
    "clear",
    "copy",
    "fromkeys",
    "get",
    "items",
    "keys",
    "pop",
    "popitem",
    "setdefault",
    "update",
    "values",
];
const LIST_METHODS: [&str; 11] = [
    "append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse",
    "sort",
];
/// Refused as in Jinja's sandbox for immutable values.
const MUTATING: [&str; 11] = [
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "reverse",
    "setdefault",
    "sort",
    "update",
];

pub fn is_method_name(name: &str) -> bool {
    DICT_METHODS.contains(&name)
        || LIST_METHODS.contains(&name)
        || text_methods::NAMES.contains(&name)
}

fn has_method(value: &Value, name: &str) -> bool {
    if is_dict(value) {
        return DICT_METHODS.contains(&name);
    }
    match value.kind() {
        ValueKind::String => text_methods::NAMES.contains(&name),
        ValueKind::Seq if value.is_tuple() => ["count", "index"].contains(&name),
        ValueKind::Seq => LIST_METHODS.contains(&name),
        _ => false,
    }
}

/// `value.name`: methods hide items of the same name, as in Jinja.
pub fn attribute(value: &Value, name: &str) -> Result<Value, Error> {
    if has_method(value, name) {
        return Ok(Value::from_object(BoundMethod {
            value: value.clone(),
            name: name.to_string(),
        }));
    }
    value.get_attr(name)
}

/// Calls a method that MiniJinja's values do not have.
pub fn call(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        return text_methods::call(state, text, method, args);
    }
    if !has_method(value, method) {
        return Err(Error::from(ErrorKind::UnknownMethod));
    }
    if MUTATING.contains(&method) {
        return Err(invalid(format!(
            "{method}: templates cannot change a {}",
            type_name(value)
        )));
    }
    if is_sequence(value) {
        list_method(value, method, args)
    } else {
        dict_method(value, method, args)
    }
}

fn list_method(list: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match method {
        "copy" => {
            Args::positional("copy", args, &[])?;
            list.try_iter()?
                .checked()
                .collect::<Result<Vec<_>, _>>()
                .map(Value::from)
        }
        "count" => {
            let args = Args::positional("count", args, &["value"])?;
            let wanted = args.required(0)?;
            let mut count = 0;
            for item in list.try_iter()?.checked() {
                count += usize::from(item? == *wanted);
            }
            Ok(Value::from(count))
        }
        _ => {
            let args = Args::positional("index", args, &["value", "start", "stop"])?;
            let wanted = args.required(0)?;
            let length = list.len().unwrap_or(0) as i64;
            let bound = |index, default| -> Result<i64, Error> {
                let bound = args.integer_or(index, default)?;
                Ok(if bound < 0 {
                    bound.saturating_add(length).max(0)
                } else {
                    bound
                })
            };
            let (start, stop) = (bound(1, 0)?, bound(2, i64::MAX)?);
            for (index, item) in list.try_iter()?.checked().enumerate() {
                let index = index as i64;
                if item? == *wanted && index >= start && index < stop {
                    return Ok(Value::from(index));
                }
            }
            Err(invalid("index: the value is not in the list"))
        }
    }
}

fn dict_method(dict: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if method == "get" {
        let args = Args::positional("get", args, &["key", "default"])?;
        let object = dict.as_object();
        let found = object.and_then(|object| object.get_value(args.get(0)?));
        args.required(0)?;
        let default = || args.get(1).cloned().unwrap_or_else(|| Value::from(()));
        return Ok(found.unwrap_or_else(default));
    }
    if method == "fromkeys" {
        return Err(invalid("fromkeys: not a method of templates' dicts"));
    }
    if !args.is_empty() {
        return Err(Error::new(
            ErrorKind::TooManyArguments,
            format!("{method}: takes no arguments"),
        ));
    }
    match method {
        "items" => DictView::items(dict),
        "keys" => DictView::keys(dict),
        "values" => DictView::values(dict),
        _ => Ok(Value::from_pairs(pairs(dict)?)),
    }
}

pub fn is_dict_method(name: &str) -> bool {
    DICT_METHODS.contains(&name)
}
