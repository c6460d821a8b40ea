//! Errors and the causes behind them ([`Error::source`]).

use std::{error::Error, iter::successors};

/// `error` and its causes, outermost first.
pub fn causes<'e>(
    error: &'e (dyn Error + 'static),
) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    successors(Some(error), |&error| error.source())
}

/// The first error of type `E` among `error` and its causes.
#[must_use]
pub fn find<'e, E: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e E> {
    causes(error).find_map(|error| error.downcast_ref())
}

/// `error` and its causes in one line, separated by `: `. A cause whose text is already part of the line is left out.
#[must_use]
pub fn one_line(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in causes(error).skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// The text of the innermost cause.
#[must_use]
pub fn root_cause(error: &(dyn Error + 'static)) -> String {
    causes(error)
        .last()
        .map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("connect failed")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("transport: {0}")]
    struct Inner(#[source] io::Error);

    fn error() -> Outer {
        Outer(Inner(io::Error::other("reset")))
    }

    #[test]
    fn a_cause_already_in_the_text_is_not_repeated() {
        assert_eq!(one_line(&error()), "connect failed: transport: reset");
    }

    #[test]
    fn causes_are_found_by_type() {
        let error = error();
        assert!(find::<io::Error>(&error).is_some());
        assert!(find::<std::fmt::Error>(&error).is_none());
        assert_eq!(root_cause(&error), "reset");
    }
}
