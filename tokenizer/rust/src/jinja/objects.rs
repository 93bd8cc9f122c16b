//! Python objects without a counterpart in MiniJinja: views of dicts, ranges, methods as values,
//! and Jinja's `cycler` and `joiner`.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, Tuple, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use super::calls::{add_function, Args};
use super::methods;
use super::values::{invalid, pairs};

/// Jinja's sandbox refuses longer ranges.
const MAX_RANGE: i128 = 100_000;

pub fn register(environment: &mut Environment) {
    add_function(environment, "range", range);
    add_function(environment, "cycler", cycler);
    add_function(environment, "joiner", joiner);
}

/// Whether the value is a dict of Python, not one of Jinja's objects with attributes.
pub fn is_dict(value: &Value) -> bool {
    let engine_types = ["Namespace", "Loop", "Module", "Macro"];
    value.kind() == ValueKind::Map
        && type_of_object(value).is_some_and(|name| !engine_types.contains(&name))
}

/// The name of an object's Rust type, which identifies MiniJinja's own types.
pub fn type_of_object(value: &Value) -> Option<&'static str> {
    value.as_object()?.type_name().rsplit("::").next()
}

/// What `dict.items`, `keys` and `values` return.
#[derive(Debug)]
pub struct DictView {
    name: &'static str,
    items: Vec<Value>,
}

impl DictView {
    pub fn items(dict: &Value) -> Result<Value, Error> {
        let item = |(key, value)| Value::from(Tuple::from([key, value]));
        Self::of("dict_items", pairs(dict)?.into_iter().map(item))
    }

    pub fn keys(dict: &Value) -> Result<Value, Error> {
        Self::of("dict_keys", pairs(dict)?.into_iter().map(|pair| pair.0))
    }

    pub fn values(dict: &Value) -> Result<Value, Error> {
        Self::of("dict_values", pairs(dict)?.into_iter().map(|pair| pair.1))
    }

    fn of(name: &'static str, items: impl Iterator<Item = Value>) -> Result<Value, Error> {
        let items = items.collect();
        Ok(Value::from_object(Self { name, items }))
    }
}

impl Object for DictView {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.items.len())
    }
}

/// "dict_items" and the like, for views.
pub fn view_name(value: &Value) -> Option<&'static str> {
    value
        .downcast_object_ref::<DictView>()
        .map(|view| view.name)
}

#[derive(Debug)]
struct Range {
    start: i128,
    stop: i128,
    step: i128,
    length: usize,
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let index = key.as_usize().filter(|index| *index < self.length)?;
        Some(Value::from(self.start + self.step * index as i128))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.length)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            1 => write!(f, "range({}, {})", self.start, self.stop),
            step => write!(f, "range({}, {}, {step})", self.start, self.stop),
        }
    }
}

/// Sequences that are not printed as a list.
pub fn prints_itself(value: &Value) -> bool {
    value.downcast_object_ref::<Range>().is_some()
}

fn range(_state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let args = Args::positional("range", args, &["start", "stop", "step"])?;
    args.required(0)?;
    let number = |index, default: i64| args.integer_or(index, default).map(i128::from);
    let (start, stop) = match args.get(1) {
        None => (0, number(0, 0)?),
        Some(_) => (number(0, 0)?, number(1, 0)?),
    };
    let step = number(2, 1)?;
    let distance = match step {
        0 => return Err(invalid("range: the step cannot be zero")),
        1.. => stop - start,
        _ => start - stop,
    };
    let length = (distance.max(0) + step.abs() - 1) / step.abs();
    if length > MAX_RANGE {
        return Err(invalid(format!("range: longer than {MAX_RANGE}")));
    }
    Ok(Value::from_object(Range {
        start,
        stop,
        step,
        length: length as usize,
    }))
}

/// A method that is named but not called.
#[derive(Debug)]
pub struct BoundMethod {
    pub value: Value,
    pub name: String,
}

impl Object for BoundMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State, args: &[Value]) -> Result<Value, Error> {
        methods::call(state, &self.value, &self.name, args)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = super::values::type_name(&self.value);
        write!(f, "<built-in method {} of {kind} object>", self.name)
    }
}

#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    position: AtomicUsize,
}

impl Cycler {
    fn current(&self) -> Value {
        let position = self.position.load(Ordering::Relaxed);
        self.items[position % self.items.len()].clone()
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current")).then(|| self.current())
    }

    fn call_method(
        self: &Arc<Self>,
        _state: &mut State,
        method: &str,
        _args: &[Value],
    ) -> Result<Value, Error> {
        match method {
            "next" => {
                let current = self.current();
                self.position.fetch_add(1, Ordering::Relaxed);
                Ok(current)
            }
            "reset" => {
                self.position.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

fn cycler(_state: &mut State, items: &[Value]) -> Result<Value, Error> {
    if items.is_empty() {
        return Err(invalid("cycler: at least one item is needed"));
    }
    Ok(Value::from_object(Cycler {
        items: items.to_vec(),
        position: AtomicUsize::new(0),
    }))
}

#[derive(Debug)]
struct Joiner {
    separator: Value,
    used: AtomicBool,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _state: &mut State, _args: &[Value]) -> Result<Value, Error> {
        Ok(match self.used.swap(true, Ordering::Relaxed) {
            true => self.separator.clone(),
            false => Value::from(""),
        })
    }
}

fn joiner(_state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let args = Args::new("joiner", args, &["sep"])?;
    Ok(Value::from_object(Joiner {
        separator: args.get(0).cloned().unwrap_or_else(|| Value::from(", ")),
        used: AtomicBool::new(false),
    }))
}
