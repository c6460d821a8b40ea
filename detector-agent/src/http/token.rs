//! The bearer token that clients must present, from a file that may be replaced while the agent runs.

use std::{
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use subtle::ConstantTimeEq as _;
use tracing::warn;

/// Longest token, in bytes.
const MAX_TOKEN_BYTES: usize = 4096;
/// How long a token is used before the file is read again.
const REREAD_AFTER: Duration = Duration::from_secs(5);

/// Why no token could be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error(
        "cannot read the token file {path}: {source}; check --http-token-file and its permissions"
    )]
    Unreadable {
        /// The file.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// Its content is not a valid token.
    #[error(
        "the token file {path} does not contain a valid token; write one line of 16 to 4096 visible ASCII characters into it"
    )]
    Unusable {
        /// The file.
        path: String,
    },
}

/// The token. Its `Debug` output does not contain it.
pub(super) struct Token {
    path: PathBuf,
    current: Mutex<CurrentToken>,
}

struct CurrentToken {
    token: Vec<u8>,
    read_at: Instant,
    /// The last read failed and was logged.
    read_failing: bool,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Token {
    /// Reads the file.
    pub(super) fn load(path: &Path) -> Result<Self, TokenError> {
        Ok(Self {
            path: path.to_owned(),
            current: Mutex::new(CurrentToken {
                token: read(path)?,
                read_at: Instant::now(),
                read_failing: false,
            }),
        })
    }

    /// Whether an `Authorization` header value carries the token; compared in constant time.
    pub(super) fn matches(&self, authorization: Option<&[u8]>) -> bool {
        let Some((scheme, given)) = authorization.and_then(|value| value.split_at_checked(7))
        else {
            return false;
        };
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.read_at.elapsed() > REREAD_AFTER {
            current.read_at = Instant::now();
            match read(&self.path) {
                Ok(token) => {
                    current.token = token;
                    current.read_failing = false;
                }
                // Logged once: every request would repeat it.
                Err(error) if !current.read_failing => {
                    current.read_failing = true;
                    warn!(%error, "token file unusable; the previous token remains valid");
                }
                Err(_) => {}
            }
        }
        scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(current.token.as_slice().ct_eq(given))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TokenError> {
    let shown = || path.display().to_string();
    let mut text = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_TOKEN_BYTES as u64 + 2).read_to_end(&mut text))
        .map_err(|source| TokenError::Unreadable {
            path: shown(),
            source,
        })?;
    let token = text.trim_ascii();
    if !(16..=MAX_TOKEN_BYTES).contains(&token.len()) || !token.iter().all(u8::is_ascii_graphic) {
        return Err(TokenError::Unusable { path: shown() });
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use std::io::Write as _;

    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn only_the_exact_token_matches() {
        let file = file("0123456789abcdef\n");
        let token = Token::load(file.path()).unwrap();
        assert!(token.matches(Some(b"Bearer 0123456789abcdef")));
        assert!(token.matches(Some(b"bearer 0123456789abcdef")));
        for wrong in [
            &b"Bearer 0123456789abcdeF"[..],
            b"Bearer 0123456789abcdef0",
            b"Bearer 0123456789abcde",
            b"Bearer  0123456789abcdef",
            b"Basic 0123456789abcdef",
            b"Bearer",
            b"Bearer ",
            b"",
        ] {
            assert!(!token.matches(Some(wrong)), "{wrong:?}");
        }
        assert!(!token.matches(None));
    }

    #[test]
    fn an_unusable_token_file_is_named_and_not_shown() {
        for text in ["", "\n", "short", "spaces in the middle of it"] {
            let file = file(text);
            let error = Token::load(file.path()).unwrap_err().to_string();
            assert!(
                error.contains(&file.path().display().to_string()),
                "{error}"
            );
            assert!(text.trim().is_empty() || !error.contains(text), "{error}");
        }
    }
}
