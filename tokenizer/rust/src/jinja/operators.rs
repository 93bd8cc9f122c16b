//! Python's operators, as filters that `lower` substitutes for MiniJinja's operators.

use std::cmp::Ordering;
use std::fmt;

use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Environment, Error, State};

use super::format;
use super::methods;
use super::values::{float, integer, invalid, is_list_like, number, to_text, type_name, undefined};

/// Limit of the bytes of text that one rendering may copy or read. Templates that append to a
/// string in a loop, or that loop over all messages for each message, take time quadratic in the
/// number of messages: the limit ends them after about a second.
const MAX_WORK: u64 = 4 << 30;
/// The cost of a list item in bytes of text that take the same time: to copy it, and to visit it in
/// a loop or a filter.
const ITEM_COPY: usize = 256;
const ITEM_VISIT: usize = 1024;
const MAX_REPEATED_BYTES: usize = 100_000_000;

struct Work(u64);

/// The cause of the error that ends a rendering at the limit.
#[derive(Debug)]
pub struct OutOfWork;

impl fmt::Display for OutOfWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of work")
    }
}

impl std::error::Error for OutOfWork {}

/// Counts `bytes` of text towards the limit of this rendering.
pub fn charge(state: &mut State, bytes: usize) -> Result<(), Error> {
    let work = state.get_or_insert_extension(Work(0));
    work.0 = work.0.saturating_add(bytes as u64);
    if work.0 > MAX_WORK {
        return Err(invalid(
            "the template goes through more text and lists than it may for one request",
        )
        .with_source(OutOfWork));
    }
    Ok(())
}

fn charge_copies(state: &mut State, count: usize) -> Result<(), Error> {
    charge(state, count.saturating_mul(ITEM_COPY))
}

fn charge_visits(state: &mut State, count: usize) -> Result<(), Error> {
    charge(state, count.saturating_mul(ITEM_VISIT))
}

pub fn register(environment: &mut Environment) {
    environment.add_filter("+", add);
    environment.add_filter("*", multiply);
    environment.add_filter("%", modulo);
    environment.add_filter("~", concat);
    environment.add_filter("-x", negate);
    environment.add_filter("<", |a: &Value, b: &Value| {
        compare("<", a, b, Ordering::is_lt)
    });
    environment.add_filter("<=", |a: &Value, b: &Value| {
        compare("<=", a, b, Ordering::is_le)
    });
    environment.add_filter(">", |a: &Value, b: &Value| {
        compare(">", a, b, Ordering::is_gt)
    });
    environment.add_filter(">=", |a: &Value, b: &Value| {
        compare(">=", a, b, Ordering::is_ge)
    });
    environment.add_filter("in?", contained);
    environment.add_filter("[:]", slice);
    environment.add_filter(".", methods::attribute);
    environment.add_filter("for?", iterated);
}

fn unsupported(operator: &str, left: &Value, right: &Value) -> Error {
    if left.is_undefined() || right.is_undefined() {
        return undefined();
    }
    invalid(format!(
        "{operator} is not possible between {} and {}",
        type_name(left),
        type_name(right)
    ))
}

fn too_large(operator: &str) -> Error {
    invalid(format!("{operator}: the result is too large"))
}

pub fn html_escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

fn escaped_unless_safe(value: &Value, text: &str) -> String {
    if value.is_safe() {
        text.to_string()
    } else {
        html_escape(text)
    }
}

fn add(state: &mut State, left: &Value, right: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        charge(state, a.len() + b.len())?;
        // Other text is escaped when it is added to text marked as safe.
        if left.is_safe() || right.is_safe() {
            let text = escaped_unless_safe(left, a) + &escaped_unless_safe(right, b);
            return Ok(Value::from_safe_string(text));
        }
        return Ok(Value::from([a, b].concat()));
    }
    if is_list_like(left) && is_list_like(right) {
        if left.is_tuple() != right.is_tuple() {
            return Err(unsupported("+", left, right));
        }
        let mut items = collect(state, left)?;
        items.extend(collect(state, right)?);
        return Ok(sequence(items, left.is_tuple()));
    }
    if let (Some(a), Some(b)) = (integer(left), integer(right)) {
        return a
            .checked_add(b)
            .map(Value::from)
            .ok_or_else(|| too_large("+"));
    }
    match (number(left), number(right)) {
        (Some(a), Some(b)) => Ok(Value::from(a + b)),
        _ => Err(unsupported("+", left, right)),
    }
}

/// The items of a list, counted as copied.
fn collect(state: &mut State, value: &Value) -> Result<Vec<Value>, Error> {
    charge_copies(state, value.len().unwrap_or(0))?;
    value.try_iter()?.checked().collect()
}

fn sequence(items: Vec<Value>, as_tuple: bool) -> Value {
    if as_tuple {
        Value::from(Tuple::from(items))
    } else {
        Value::from(items)
    }
}

fn multiply(state: &mut State, left: &Value, right: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (integer(left), integer(right)) {
        return a
            .checked_mul(b)
            .map(Value::from)
            .ok_or_else(|| too_large("*"));
    }
    if let (Some(a), Some(b)) = (number(left), number(right)) {
        return Ok(Value::from(a * b));
    }
    let (repeated, times) = match (integer(right), integer(left)) {
        (Some(times), _) => (left, times),
        (_, Some(times)) => (right, times),
        _ => return Err(unsupported("*", left, right)),
    };
    let times = usize::try_from(times.max(0)).map_err(|_| too_large("*"))?;
    let charge_for = |state: &mut State, size: usize| {
        let total = size.checked_mul(times);
        match total.filter(|total| *total <= MAX_REPEATED_BYTES) {
            Some(total) => charge(state, total),
            None => Err(too_large("*")),
        }
    };
    if let Some(text) = repeated.as_str() {
        charge_for(state, text.len())?;
        return Ok(Value::from(text.repeat(times)));
    }
    if !is_list_like(repeated) {
        return Err(unsupported("*", left, right));
    }
    let items = collect(state, repeated)?;
    charge_for(state, items.len().saturating_mul(ITEM_COPY))?;
    let items = std::iter::repeat_n(items, times).flatten().collect();
    Ok(sequence(items, repeated.is_tuple()))
}

fn modulo(state: &mut State, left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(pattern) = left.as_str() {
        let text = format::percent(pattern, right)?;
        charge(state, text.len())?;
        return Ok(Value::from(text));
    }
    let zero = || invalid("%: division by zero");
    if let (Some(a), Some(b)) = (integer(left), integer(right)) {
        let remainder = a.checked_rem(b).ok_or_else(zero)?;
        let differs = remainder != 0 && (remainder < 0) != (b < 0);
        return Ok(Value::from(if differs { remainder + b } else { remainder }));
    }
    match (number(left), number(right)) {
        (Some(_), Some(0.0)) => Err(zero()),
        (Some(a), Some(b)) => {
            let remainder = a % b;
            let differs = remainder != 0.0 && (remainder < 0.0) != (b < 0.0);
            let remainder = if differs { remainder + b } else { remainder };
            Ok(Value::from(if remainder == 0.0 {
                0.0_f64.copysign(b)
            } else {
                remainder
            }))
        }
        _ => Err(unsupported("%", left, right)),
    }
}

fn concat(state: &mut State, left: &Value, right: &Value) -> Result<Value, Error> {
    let text = to_text(left)? + &to_text(right)?;
    charge(state, text.len())?;
    Ok(Value::from(text))
}

fn negate(value: &Value) -> Result<Value, Error> {
    if let Some(integer) = integer(value) {
        return integer
            .checked_neg()
            .map(Value::from)
            .ok_or_else(|| too_large("-"));
    }
    match float(value) {
        Some(float) => Ok(Value::from(-float)),
        None if value.is_undefined() => Err(undefined()),
        None => Err(invalid(format!(
            "- is not possible before {}",
            type_name(value)
        ))),
    }
}

/// Whether Python can order the two: both must be numbers, strings, lists or tuples.
pub fn are_ordered(left: &Value, right: &Value) -> bool {
    let both = |is: &dyn Fn(&Value) -> bool| is(left) && is(right);
    both(&|value| number(value).is_some())
        || both(&|value| value.as_str().is_some())
        || (both(&is_list_like) && left.is_tuple() == right.is_tuple())
}

/// The order of `Value`, except that bools are numbers, as in Python.
pub fn order(left: &Value, right: &Value) -> Ordering {
    let as_number = |value: &Value| match value.kind() {
        ValueKind::Bool => Value::from(value.is_true() as i64),
        _ => value.clone(),
    };
    as_number(left).cmp(&as_number(right))
}

fn compare(
    operator: &str,
    left: &Value,
    right: &Value,
    holds: fn(Ordering) -> bool,
) -> Result<bool, Error> {
    if !are_ordered(left, right) {
        return Err(unsupported(operator, left, right));
    }
    let is_nan = |value: &Value| float(value).is_some_and(f64::is_nan);
    Ok(!is_nan(left) && !is_nan(right) && holds(order(left, right)))
}

pub fn contains(container: &Value, item: &Value) -> Result<bool, Error> {
    match container.kind() {
        ValueKind::Undefined => Ok(false),
        ValueKind::String => match (container.as_str(), item.as_str()) {
            (Some(text), Some(part)) => Ok(text.contains(part)),
            _ => Err(unsupported("in", item, container)),
        },
        ValueKind::Map => Ok(container
            .as_object()
            .is_some_and(|object| object.get_value(item).is_some())),
        ValueKind::Seq | ValueKind::Iterable => {
            for other in container.try_iter()?.checked() {
                if other? == *item {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => Err(unsupported("in", item, container)),
    }
}

fn contained(state: &mut State, item: &Value, container: &Value) -> Result<bool, Error> {
    if is_list_like(container) {
        charge_visits(state, container.len().unwrap_or(0))?;
    }
    contains(container, item)
}

/// The items that a loop or a filter visits. An error for None, which MiniJinja would treat as an
/// empty list.
fn iterated(state: &mut State, value: &Value) -> Result<Value, Error> {
    if value.is_none() {
        return Err(invalid("none is not iterable"));
    }
    charge_visits(state, value.len().unwrap_or(0))?;
    Ok(value.clone())
}

/// `value[start:stop:step]`. Undefined if the value cannot be sliced, as for other missing items.
fn slice(
    state: &mut State,
    value: &Value,
    start: &Value,
    stop: &Value,
    step: &Value,
) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(undefined());
    }
    let bound = |bound: &Value| match (bound.is_none(), integer(bound)) {
        (true, _) => Some(None),
        (false, Some(integer)) => Some(Some(integer)),
        (false, None) => None,
    };
    let (Some(start), Some(stop), Some(step)) = (bound(start), bound(stop), bound(step)) else {
        return Ok(Value::UNDEFINED);
    };
    if step == Some(0) {
        return Err(invalid("a slice's step cannot be zero"));
    }
    let slice = Slice {
        start,
        stop,
        step: step.unwrap_or(1),
    };
    if let Some(text) = value.as_str() {
        let text = slice.of_text(text);
        charge(state, text.len())?;
        return Ok(Value::from(text));
    }
    if !is_list_like(value) {
        return Ok(Value::UNDEFINED);
    }
    let items = match (value.kind(), value.as_object(), value.len()) {
        (ValueKind::Seq, Some(object), Some(length)) => {
            let indices = slice.indices(length);
            charge_copies(state, indices.len())?;
            let item = |index: usize| object.get_value(&Value::from(index)).unwrap_or_default();
            indices.into_iter().map(item).collect()
        }
        _ => {
            let items = collect(state, value)?;
            let indices = slice.indices(items.len());
            indices
                .into_iter()
                .map(|index| items[index].clone())
                .collect()
        }
    };
    Ok(sequence(items, value.is_tuple()))
}

struct Slice {
    start: Option<i128>,
    stop: Option<i128>,
    step: i128,
}

impl Slice {
    /// The first index and the one to stop before, in the direction of the step.
    fn bounds(&self, length: usize) -> (i128, i128) {
        let length = length as i128;
        let (lowest, highest) = if self.step > 0 {
            (0, length)
        } else {
            (-1, length - 1)
        };
        let clamp = |bound: i128| {
            let bound = if bound < 0 {
                bound.saturating_add(length)
            } else {
                bound
            };
            bound.clamp(lowest, highest)
        };
        let (first, end) = if self.step > 0 {
            (lowest, highest)
        } else {
            (highest, lowest)
        };
        (
            self.start.map_or(first, clamp),
            self.stop.map_or(end, clamp),
        )
    }

    fn indices(&self, length: usize) -> Vec<usize> {
        let (mut index, stop) = self.bounds(length);
        let mut indices = Vec::new();
        while (self.step > 0 && index < stop) || (self.step < 0 && index > stop) {
            indices.push(index as usize);
            index = index.saturating_add(self.step);
        }
        indices
    }

    fn of_text(&self, text: &str) -> String {
        if self.step == 1 {
            let length = if text.is_ascii() {
                text.len()
            } else {
                text.chars().count()
            };
            let (start, stop) = self.bounds(length);
            let (start, stop) = (start as usize, stop.max(start) as usize);
            if text.is_ascii() {
                return text[start..stop].to_string();
            }
            return text.chars().skip(start).take(stop - start).collect();
        }
        let chars: Vec<char> = text.chars().collect();
        let indices = self.indices(chars.len()).into_iter();
        indices.map(|index| chars[index]).collect()
    }
}
