//! Python's two ways to format strings: `pattern % values` and `pattern.format(values)`.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::Error;

use super::calls::split_kwargs;
use super::format_spec::{self, pad, Spec};
use super::values::{ascii_repr, integer, invalid, number, repr, to_text, type_name};

/// `pattern % values`.
pub fn percent(pattern: &str, values: &Value) -> Result<String, Error> {
    let mut arguments = Arguments::of(values)?;
    let mut out = String::new();
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        rest = conversion(&mut out, after, &mut arguments)?;
    }
    out.push_str(rest);
    arguments.finish()?;
    Ok(out)
}

/// The right operand of `%`: the items of a tuple in order, or else one value, which may be a
/// mapping from names to values.
struct Arguments<'a> {
    values: Vec<Value>,
    next: usize,
    whole: &'a Value,
}

impl<'a> Arguments<'a> {
    fn of(whole: &'a Value) -> Result<Self, Error> {
        let values = if whole.is_tuple() {
            whole.try_iter()?.checked().collect::<Result<_, _>>()?
        } else {
            vec![whole.clone()]
        };
        Ok(Self {
            values,
            next: 0,
            whole,
        })
    }

    fn next(&mut self) -> Result<Value, Error> {
        let value = self.values.get(self.next).cloned();
        self.next += 1;
        value.ok_or_else(|| invalid("%: not enough values for the format"))
    }

    fn named(&mut self, name: &str) -> Result<Value, Error> {
        let object = match self.whole.kind() {
            ValueKind::Map => self.whole.as_object(),
            _ => return Err(invalid("%: the format needs a mapping")),
        };
        let value = object.and_then(|object| object.get_value(&Value::from(name)));
        value.ok_or_else(|| invalid(format!("%: the mapping has no {name}")))
    }

    /// Values that can be indexed need not be used.
    fn finish(&self) -> Result<(), Error> {
        let may_be_left = !self.whole.is_tuple()
            && matches!(
                self.whole.kind(),
                ValueKind::Map | ValueKind::Seq | ValueKind::Undefined
            );
        if self.next < self.values.len() && !may_be_left {
            return Err(invalid("%: not all values are used by the format"));
        }
        Ok(())
    }
}

/// Writes the conversion at the start of `after`, the text after a percent sign. Returns the text
/// that follows it.
fn conversion<'a>(
    out: &mut String,
    after: &'a str,
    arguments: &mut Arguments,
) -> Result<&'a str, Error> {
    let mut rest = after;
    let mut name = None;
    if let Some(inner) = rest.strip_prefix('(') {
        let close = closing(inner, '(', ')')
            .ok_or_else(|| invalid("%: the name in the format is not closed"))?;
        name = Some(&inner[..close]);
        rest = &inner[close + 1..];
    }
    let mut spec = Spec::right_aligned();
    while let Some(flag) = rest.chars().next().filter(|c| "-+ #0".contains(*c)) {
        match flag {
            '-' => spec.align = Some('<'),
            '+' => spec.sign = '+',
            ' ' if spec.sign != '+' => spec.sign = ' ',
            '#' => spec.alternate = true,
            '0' => spec.zeros = true,
            _ => {}
        }
        rest = &rest[1..];
    }
    let (width, after_width) = count(rest, arguments)?;
    if width.is_some_and(|width| width < 0) {
        spec.align = Some('<');
    }
    spec.width = format_spec::checked(width.unwrap_or(0).unsigned_abs())?;
    rest = after_width;
    if let Some(after_dot) = rest.strip_prefix('.') {
        let (precision, after_precision) = count(after_dot, arguments)?;
        let precision = precision.unwrap_or(0).max(0).unsigned_abs();
        spec.precision = Some(format_spec::checked(precision)?);
        rest = after_precision;
    }
    rest = rest.strip_prefix(['h', 'l', 'L']).unwrap_or(rest);
    let Some(kind) = rest.chars().next() else {
        return Err(invalid("%: the format ends within a conversion"));
    };
    if kind == '%' {
        out.push('%');
    } else {
        let value = match name {
            Some(name) => arguments.named(name)?,
            None => arguments.next()?,
        };
        if name.is_some() {
            arguments.next = arguments.values.len();
        }
        out.push_str(&converted(kind, &value, &spec)?);
    }
    Ok(&rest[kind.len_utf8()..])
}

/// The end of the bracketed part that `text` begins in.
fn closing(text: &str, open: char, close: char) -> Option<usize> {
    let mut depth = 1;
    text.char_indices().find_map(|(at, c)| {
        if c == open {
            depth += 1;
        } else if c == close {
            depth -= 1;
        }
        (depth == 0).then_some(at)
    })
}

/// A width or precision: digits, or `*` for one of the values.
fn count<'a>(text: &'a str, arguments: &mut Arguments) -> Result<(Option<i64>, &'a str), Error> {
    if let Some(rest) = text.strip_prefix('*') {
        let value = arguments.next()?;
        let value = integer(&value).and_then(|value| i64::try_from(value).ok());
        let value = value.ok_or_else(|| invalid("%: * needs an integer"))?;
        return Ok((Some(value), rest));
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let value = match &text[..digits] {
        "" => None,
        digits => Some(digits.parse().unwrap_or(i64::MAX)),
    };
    Ok((value, &text[digits..]))
}

fn converted(kind: char, value: &Value, spec: &Spec) -> Result<String, Error> {
    let wrong = |wanted: &str| {
        let given = type_name(value);
        invalid(format!("%{kind}: {wanted} is needed, not {given}"))
    };
    match kind {
        's' => Ok(pad(&spec.cut(&to_text(value)?), spec)),
        'r' => Ok(pad(&spec.cut(&repr(value)?), spec)),
        'a' => Ok(pad(&spec.cut(&ascii_repr(value)?), spec)),
        'c' => {
            let code = integer(value).and_then(|code| u32::try_from(code).ok());
            let c = match value.as_str() {
                Some(text) if text.chars().count() == 1 => text.chars().next(),
                Some(_) => None,
                None => code.and_then(char::from_u32),
            };
            let c = c.ok_or_else(|| wrong("one character"))?;
            Ok(pad(&c.to_string(), spec))
        }
        'd' | 'i' | 'u' => {
            let truncated = || super::values::float(value).filter(|float| float.is_finite());
            let integer = integer(value).or_else(|| truncated().map(|float| float as i128));
            let integer = integer.ok_or_else(|| wrong("a number"))?;
            Ok(format_spec::integer(integer, 'd', spec))
        }
        'x' | 'X' | 'o' => {
            let integer = integer(value).ok_or_else(|| wrong("an integer"))?;
            Ok(format_spec::integer(integer, kind, spec))
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let number = number(value).ok_or_else(|| wrong("a number"))?;
            Ok(format_spec::float(number, kind, spec))
        }
        kind => Err(invalid(format!("%{kind}: there is no such conversion"))),
    }
}

/// `pattern.format(*args, **kwargs)`.
pub fn str_format(pattern: &str, args: &[Value]) -> Result<String, Error> {
    let (positional, kwargs) = split_kwargs(args);
    let mut fields = Fields {
        positional,
        kwargs,
        next: Some(0),
    };
    fields.fill(pattern, true)
}

struct Fields<'a> {
    positional: &'a [Value],
    kwargs: Option<Kwargs>,
    /// The index of the next field without a number; None after a field with a number.
    next: Option<usize>,
}

impl Fields<'_> {
    /// Replaces the fields of a pattern, or of a field's specification, which cannot nest further.
    fn fill(&mut self, pattern: &str, nests: bool) -> Result<String, Error> {
        let mut out = String::new();
        let mut rest = pattern;
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at]);
            let brace = &rest[at..at + 1];
            let after = &rest[at + 1..];
            if let Some(after) = after.strip_prefix(brace) {
                out.push_str(brace);
                rest = after;
                continue;
            }
            if brace == "}" {
                return Err(invalid("format: a } without its {"));
            }
            let end =
                closing(after, '{', '}').ok_or_else(|| invalid("format: a { without its }"))?;
            out.push_str(&self.field(&after[..end], nests)?);
            rest = &after[end + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }

    fn field(&mut self, field: &str, nests: bool) -> Result<String, Error> {
        let end = field_name_end(field);
        let (name, mut rest) = field.split_at(end);
        let mut value = self.value(name)?;
        if let Some(conversion) = rest.strip_prefix('!') {
            let kind = conversion.chars().next();
            value = Value::from(match kind {
                Some('r') => repr(&value)?,
                Some('s') => to_text(&value)?,
                Some('a') => ascii_repr(&value)?,
                _ => return Err(invalid("format: ! is followed by r, s or a")),
            });
            rest = &conversion[1..];
        }
        match rest.strip_prefix(':') {
            None if rest.is_empty() => to_text(&value),
            None => Err(invalid("format: ':' is expected behind the conversion")),
            Some(spec) if spec.contains('{') && !nests => {
                Err(invalid("format: fields are nested too deeply"))
            }
            Some(spec) => {
                let spec = self.fill(spec, false)?;
                format_spec::formatted(&value, &spec)
            }
        }
    }

    /// The value of a field: a number or a keyword, followed by any `[key]` and `.name`.
    fn value(&mut self, name: &str) -> Result<Value, Error> {
        let first = name.find(['[', '.']).unwrap_or(name.len());
        let mut value = self.argument(&name[..first])?;
        let mut rest = &name[first..];
        while !rest.is_empty() {
            let (key, after) = field_key(rest)?;
            let item = value.get_item(&key)?;
            if item.is_undefined() {
                return Err(invalid(format!("format: there is no item {key}")));
            }
            value = item;
            rest = after;
        }
        Ok(value)
    }

    fn argument(&mut self, name: &str) -> Result<Value, Error> {
        let index = if name.is_empty() {
            let index = self.next.ok_or_else(numbering)?;
            self.next = Some(index + 1);
            Some(index)
        } else {
            name.parse::<usize>().ok()
        };
        if index.is_some() && !name.is_empty() {
            if self.next.is_some_and(|next| next > 0) {
                return Err(numbering());
            }
            self.next = None;
        }
        let value = match (index, &self.kwargs) {
            (Some(index), _) => self.positional.get(index).cloned(),
            (None, Some(kwargs)) if kwargs.has(name) => Some(kwargs.peek::<Value>(name)?),
            (None, _) => None,
        };
        value.ok_or_else(|| invalid(format!("format: there is no value for {{{name}}}")))
    }
}

fn numbering() -> Error {
    invalid("format: fields with and without numbers cannot be mixed")
}

/// The first key of `[key]...` or `.name...`, and the rest.
fn field_key(text: &str) -> Result<(Value, &str), Error> {
    if let Some(name) = text.strip_prefix('.') {
        let end = name.find(['[', '.']).unwrap_or(name.len());
        return Ok((Value::from(&name[..end]), &name[end..]));
    }
    let bracket = text.strip_prefix('[').and_then(|key| key.split_once(']'));
    let (key, after) = bracket.ok_or_else(|| invalid("format: [ without its ]"))?;
    let key = match key.parse::<usize>() {
        Ok(index) => Value::from(index),
        Err(_) => Value::from(key),
    };
    Ok((key, after))
}

/// Keys in brackets may contain characters that end a name elsewhere.
fn field_name_end(field: &str) -> usize {
    let mut in_brackets = false;
    for (at, c) in field.char_indices() {
        match c {
            '[' => in_brackets = true,
            ']' => in_brackets = false,
            '!' | ':' if !in_brackets => return at,
            _ => {}
        }
    }
    field.len()
}
