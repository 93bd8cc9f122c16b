//! Calls of filters, functions and methods: binds arguments by position and by name, as Python
//! does.

use minijinja::value::{Kwargs, Rest, Value, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State};

use super::values::{integer, invalid, text, type_name};

pub type Callable = fn(&mut State, &[Value]) -> Result<Value, Error>;

/// A filter that takes its value as the first of its arguments.
pub fn add_filter(environment: &mut Environment, name: &'static str, filter: Callable) {
    environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
        filter(state, &args.into_values())
    });
}

pub fn add_function(environment: &mut Environment, name: &'static str, function: Callable) {
    environment.add_function(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
        function(state, &args.into_values())
    });
}

/// The positional arguments of a call and those by name.
pub fn split_kwargs(args: &[Value]) -> (&[Value], Option<Kwargs>) {
    match args.split_last() {
        Some((last, rest)) if last.is_kwargs() => (rest, Kwargs::try_from(last.clone()).ok()),
        _ => (args, None),
    }
}

/// The arguments of one call, in the order of its parameters.
pub struct Args {
    function: &'static str,
    values: Vec<Option<Value>>,
    names: &'static [&'static str],
}

impl Args {
    /// Parameters may be given by position or by name.
    pub fn new(
        function: &'static str,
        args: &[Value],
        names: &'static [&'static str],
    ) -> Result<Self, Error> {
        let (positional, kwargs) = split_kwargs(args);
        if positional.len() > names.len() {
            let count = positional.len();
            return Err(Error::new(
                ErrorKind::TooManyArguments,
                format!(
                    "{function}: {count} arguments; at most {} are allowed",
                    names.len()
                ),
            ));
        }
        let mut values: Vec<_> = positional.iter().cloned().map(Some).collect();
        values.resize(names.len(), None);
        let mut args = Self {
            function,
            values,
            names,
        };
        if let Some(kwargs) = kwargs {
            for name in kwargs.args() {
                args.set_by_name(name, kwargs.peek::<Value>(name)?)?;
            }
        }
        Ok(args)
    }

    /// By position only, as in most of Python's built-in methods.
    pub fn positional(
        function: &'static str,
        args: &[Value],
        names: &'static [&'static str],
    ) -> Result<Self, Error> {
        if split_kwargs(args).1.is_some() {
            return Err(invalid(format!("{function}: takes no keyword arguments")));
        }
        Self::new(function, args, names)
    }

    fn set_by_name(&mut self, name: &str, value: Value) -> Result<(), Error> {
        let position = self.names.iter().position(|known| *known == name);
        match position {
            Some(index) if self.values[index].is_none() => {
                self.values[index] = Some(value);
                Ok(())
            }
            Some(_) => Err(invalid(format!("{}: {name} is given twice", self.function))),
            None => Err(invalid(format!(
                "{}: no argument is called {name}",
                self.function
            ))),
        }
    }

    pub fn get(&self, index: usize) -> Option<&Value> {
        self.values[index].as_ref()
    }

    /// None counts as absent.
    pub fn given(&self, index: usize) -> Option<&Value> {
        self.get(index).filter(|value| !value.is_none())
    }

    pub fn required(&self, index: usize) -> Result<&Value, Error> {
        self.get(index).ok_or_else(|| {
            Error::new(
                ErrorKind::MissingArgument,
                format!("{}: {} is missing", self.function, self.names[index]),
            )
        })
    }

    pub fn text(&self, index: usize) -> Result<&str, Error> {
        text(self.required(index)?, self.function)
    }

    pub fn text_or<'a>(&'a self, index: usize, default: &'a str) -> Result<&'a str, Error> {
        self.get(index)
            .map_or(Ok(default), |value| text(value, self.function))
    }

    pub fn integer_or(&self, index: usize, default: i64) -> Result<i64, Error> {
        self.get(index)
            .map_or(Ok(default), |value| self.to_integer(value))
    }

    /// None if the argument is absent or none.
    pub fn optional_integer(&self, index: usize) -> Result<Option<i64>, Error> {
        self.given(index)
            .map(|value| self.to_integer(value))
            .transpose()
    }

    pub fn is_true(&self, index: usize, default: bool) -> bool {
        self.get(index).map_or(default, Value::is_true)
    }

    /// Counts and positions beyond 64 bits are all equivalent.
    fn to_integer(&self, value: &Value) -> Result<i64, Error> {
        let integer = integer(value).ok_or_else(|| {
            invalid(format!(
                "{}: must be an integer, not {}",
                self.function,
                type_name(value)
            ))
        })?;
        Ok(integer.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
    }
}
