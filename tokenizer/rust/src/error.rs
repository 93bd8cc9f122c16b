//! Errors as values, with the codes of the C++ side.

use std::fmt;

/// The absl::StatusCode values that this library returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    InvalidArgument = 3,
    NotFound = 5,
    FailedPrecondition = 9,
    Internal = 13,
}

#[derive(Clone, Debug)]
pub struct Error {
    pub code: Code,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn invalid(message: impl fmt::Display) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    pub fn new(code: Code, message: impl fmt::Display) -> Self {
        Self {
            code,
            message: message.to_string(),
        }
    }
}
