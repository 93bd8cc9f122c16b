//! Jinja's filters and tests for lists, dicts and values in general that MiniJinja lacks or that
//! have other arguments there.

use minijinja::value::{Kwargs, Tuple, Value, ValueKind};
use minijinja::{Environment, Error, State};

use super::calls::{add_filter, add_function, Args};
use super::methods::attribute;
use super::objects::{is_dict, type_of_object, DictView};
use super::operators::{are_ordered, charge, contains, order};
use super::values::{invalid, pairs, to_text, type_name, undefined};

pub fn register(environment: &mut Environment) {
    environment.add_filter("string", string);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("list", list);
    environment.add_filter("items", items);
    environment.add_filter("attr", attr);
    environment.add_filter("random", random);
    add_filter(environment, "sort", sort);
    add_filter(environment, "dictsort", dictsort);
    add_filter(environment, "join", join);
    add_filter(environment, "default", default);
    add_filter(environment, "d", default);
    add_function(environment, "dict", dict);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.add_test("mapping", is_dict);
    environment.add_test("callable", is_callable);
    environment.add_test("in", |item: &Value, container: &Value| {
        contains(container, item)
    });
    for only_in_minijinja in ["startingwith", "endingwith"] {
        environment.remove_test(only_in_minijinja);
    }
}

fn string(value: &Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(_) => Ok(value.clone()),
        None => to_text(value).map(Value::from),
    }
}

/// Undefined counts as empty, as in Jinja.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    let unknown = || {
        invalid(format!(
            "a value of type {} has no length",
            type_name(value)
        ))
    };
    value.len().ok_or_else(unknown)
}

fn list(value: &Value) -> Result<Value, Error> {
    if value.is_none() {
        return Err(invalid("list: none is not iterable"));
    }
    let items: Result<Vec<Value>, Error> = value.try_iter()?.checked().collect();
    items.map(Value::from)
}

fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    DictView::items(value)
}

/// Attributes only: items of a dict are not attributes.
fn attr(value: &Value, name: &str) -> Result<Value, Error> {
    if is_dict(value) && !super::methods::is_dict_method(name) {
        return Ok(Value::UNDEFINED);
    }
    attribute(value, name)
}

/// Returns the same item each time, so that equal requests give equal prompts.
fn random(value: &Value) -> Result<Value, Error> {
    let first = list(value)?.try_iter()?.next();
    Ok(first.unwrap_or(Value::UNDEFINED))
}

/// The key of an item for `sort`.
fn sort_key(item: &Value, paths: &[&str], case_sensitive: bool) -> Result<Vec<Value>, Error> {
    let folded = |value: Value| match value.as_str() {
        Some(text) if !case_sensitive => Value::from(text.to_lowercase()),
        _ => value,
    };
    if paths.is_empty() {
        return Ok(vec![folded(item.clone())]);
    }
    let part = |value: Value, name: &str| match name.parse::<usize>() {
        Ok(index) => value.get_item(&Value::from(index)),
        Err(_) => value.get_attr(name),
    };
    let at = |path: &&str| path.split('.').try_fold(item.clone(), part).map(folded);
    paths.iter().map(at).collect()
}

/// Sorts by keys, which Python must be able to order.
fn sort_by_keys(mut keyed: Vec<(Vec<Value>, Value)>, reverse: bool) -> Result<Vec<Value>, Error> {
    for pair in keyed.windows(2) {
        for (left, right) in pair[0].0.iter().zip(&pair[1].0) {
            if left.is_undefined() || right.is_undefined() {
                return Err(undefined());
            }
            if !are_ordered(left, right) {
                let (left, right) = (type_name(left), type_name(right));
                return Err(invalid(format!("sort: {left} and {right} have no order")));
            }
        }
    }
    keyed.sort_by(|(left, _), (right, _)| {
        let orders = left
            .iter()
            .zip(right)
            .map(|(left, right)| order(left, right));
        let order = orders.fold(std::cmp::Ordering::Equal, |all, next| all.then(next));
        if reverse {
            order.reverse()
        } else {
            order
        }
    });
    Ok(keyed.into_iter().map(|(_, item)| item).collect())
}

fn sort(_state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let names = &["value", "reverse", "case_sensitive", "attribute"];
    let args = Args::new("sort", args, names)?;
    let value = list(args.required(0)?)?;
    let attribute = args.given(3).map(to_text).transpose()?;
    let paths: Vec<&str> = attribute
        .iter()
        .flat_map(|names| names.split(','))
        .collect();
    let mut keyed = Vec::new();
    for item in value.try_iter()?.checked() {
        let item = item?;
        keyed.push((sort_key(&item, &paths, args.is_true(2, false))?, item));
    }
    sort_by_keys(keyed, args.is_true(1, false)).map(Value::from)
}

fn dictsort(_state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let names = &["value", "case_sensitive", "by", "reverse"];
    let args = Args::new("dictsort", args, names)?;
    let by_value = match args.text_or(2, "key")? {
        "key" => false,
        "value" => true,
        _ => return Err(invalid("dictsort: by must be \"key\" or \"value\"")),
    };
    let mut keyed = Vec::new();
    for (key, value) in pairs(args.required(0)?)? {
        let sorted_by = if by_value { &value } else { &key };
        let sorted_by = sort_key(sorted_by, &[], args.is_true(1, false))?;
        keyed.push((sorted_by, Value::from(Tuple::from([key, value]))));
    }
    sort_by_keys(keyed, args.is_true(3, false)).map(Value::from)
}

fn join(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let args = Args::new("join", args, &["value", "d", "attribute"])?;
    let mut value = args.required(0)?.clone();
    if value.is_none() {
        return Err(invalid("join: none is not iterable"));
    }
    if let Some(attribute) = args.given(2) {
        let kwargs = Kwargs::from_iter([("attribute", attribute.clone())]);
        value = state.apply_filter("map", &[value, kwargs.into()])?;
    }
    let separator = args.get(1).map_or(Ok(String::new()), to_text)?;
    let mut out = String::new();
    for (index, item) in value.try_iter()?.checked().enumerate() {
        if index > 0 {
            out.push_str(&separator);
        }
        out.push_str(&to_text(&item?)?);
    }
    charge(state, out.len())?;
    Ok(Value::from(out))
}

fn default(_state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let args = Args::new("default", args, &["value", "default_value", "boolean"])?;
    let value = args.required(0)?;
    if value.is_undefined() || (args.is_true(2, false) && !value.is_true()) {
        return Ok(args.get(1).cloned().unwrap_or_else(|| Value::from("")));
    }
    Ok(value.clone())
}

fn dict(_state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let mut entries = Vec::new();
    for arg in args {
        if arg.kind() == ValueKind::Map {
            entries.extend(pairs(arg)?);
            continue;
        }
        for pair in arg.try_iter()?.checked() {
            let pair: Vec<Value> = pair?.try_iter()?.checked().collect::<Result<_, _>>()?;
            let [key, value] =
                <[Value; 2]>::try_from(pair).map_err(|_| invalid("dict: an item is not a pair"))?;
            entries.push((key, value));
        }
    }
    Ok(Value::from_pairs(entries))
}

/// None is not iterable, but undefined is.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Whether the value has a length and items by position or key; strings and dicts do.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map
    )
}

fn is_callable(value: &Value) -> bool {
    let callable = ["BoxedFunction", "Macro", "BoundMethod", "Joiner"];
    type_of_object(value).is_some_and(|name| callable.contains(&name))
}
