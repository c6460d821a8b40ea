//! The token that clients have to bring, from a file that may be replaced while the agent runs.

use std::{
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use subtle::ConstantTimeEq as _;
use tracing::warn;

/// A token longer than this is none.
const LIMIT: usize = 4096;
/// How long a replaced file may go unnoticed.
const FRESH: Duration = Duration::from_secs(5);

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error(
        "cannot read the token file {path}: {source}; check --http-token-file and its permissions"
    )]
    Unreadable {
        /// Which file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// What it holds is no token.
    #[error(
        "the token file {path} holds no token; write one line of 16 to 4096 visible ASCII characters into it"
    )]
    Unusable {
        /// Which file.
        path: String,
    },
}

/// The token. Its debug form does not show it.
pub(super) struct Token {
    path: PathBuf,
    held: Mutex<Held>,
}

struct Held {
    token: Vec<u8>,
    read_at: Instant,
    /// The last reading failed.
    in_trouble: bool,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Token {
    /// Reads it for the first time.
    pub(super) fn load(path: &Path) -> Result<Self, TokenError> {
        Ok(Self {
            path: path.to_owned(),
            held: Mutex::new(Held {
                token: read(path)?,
                read_at: Instant::now(),
                in_trouble: false,
            }),
        })
    }

    /// Whether `Authorization` brings it. Takes the same time for every wrong one of its length.
    pub(super) fn admits(&self, authorization: Option<&[u8]>) -> bool {
        let Some((scheme, given)) = authorization.and_then(|value| value.split_at_checked(7))
        else {
            return false;
        };
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.read_at.elapsed() > FRESH {
            held.read_at = Instant::now();
            match read(&self.path) {
                Ok(token) => {
                    held.token = token;
                    held.in_trouble = false;
                }
                // Said once: clients would repeat it.
                Err(e) if !held.in_trouble => {
                    held.in_trouble = true;
                    warn!("{e}; the token read before stays in force");
                }
                Err(_) => {}
            }
        }
        scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(held.token.as_slice().ct_eq(given))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TokenError> {
    let shown = || path.display().to_string();
    let mut text = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(LIMIT as u64 + 2).read_to_end(&mut text))
        .map_err(|source| TokenError::Unreadable {
            path: shown(),
            source,
        })?;
    let token = text.trim_ascii();
    if !(16..=LIMIT).contains(&token.len()) || !token.iter().all(u8::is_ascii_graphic) {
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
    fn only_the_token_itself_is_admitted() {
        let file = file("0123456789abcdef\n");
        let token = Token::load(file.path()).unwrap();
        assert!(token.admits(Some(b"Bearer 0123456789abcdef")));
        assert!(token.admits(Some(b"bearer 0123456789abcdef")));
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
            assert!(!token.admits(Some(wrong)), "{wrong:?}");
        }
        assert!(!token.admits(None));
    }

    #[test]
    fn a_file_without_a_token_is_refused_by_name_and_never_shown() {
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
