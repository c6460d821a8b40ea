//! Credentials from files.

use std::{
    fmt,
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use hyper::{
    Uri,
    header::{HeaderMap, HeaderName},
};

use super::sensitive;
use crate::sinks::settings::{Endpoint, UrlSource, parse_url};

/// The largest credential, in bytes.
const LIMIT: u64 = 1 << 20;

/// What is wrong with a file. Never contains any of its content.
#[derive(Debug, thiserror::Error)]
pub enum CredentialFileError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its content is invalid.
    #[error("{} {why}", .path.display())]
    Wrong {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// The content of all files of an endpoint.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) url: Uri,
    pub(super) headers: HeaderMap,
    pub(super) ca: Option<Pem>,
    pub(super) certificate: Option<(Pem, Pem)>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// One PEM file.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pem {
    pub(super) path: PathBuf,
    pub(super) content: Vec<u8>,
}

/// Reads all files of an endpoint.
pub(super) fn read(endpoint: &Endpoint) -> Result<Credentials, CredentialFileError> {
    let url = match &endpoint.url {
        UrlSource::Given(uri) => uri.clone(),
        UrlSource::File(path) => parse_url(&secret(path)?).map_err(|why| wrong(path, why))?,
    };
    let mut headers = HeaderMap::new();
    for (name, path) in &endpoint.header_files {
        let value = secret(path)?;
        let value = sensitive(&value)
            .map_err(|_| wrong(path, "contains characters that are invalid in a header"))?;
        let name: HeaderName = name
            .parse()
            .map_err(|_| wrong(path, "belongs to a header with an invalid name"))?;
        headers.insert(name, value);
    }
    let certificate = match (&endpoint.client_cert_file, &endpoint.client_key_file) {
        (Some(certificate), Some(key)) => Some((pem(certificate)?, pem(key)?)),
        _ => None,
    };
    Ok(Credentials {
        url,
        headers,
        ca: endpoint.ca_file.as_deref().map(pem).transpose()?,
        certificate,
    })
}

/// Reads a secret and trims it.
///
/// # Errors
/// If the file cannot be read, is empty or is not UTF-8.
pub fn secret(path: &Path) -> Result<Arc<str>, CredentialFileError> {
    let content = String::from_utf8(bytes(path)?).map_err(|_| wrong(path, "is not UTF-8 text"))?;
    match content.trim() {
        "" => Err(wrong(path, "is empty")),
        text => Ok(Arc::from(text)),
    }
}

fn pem(path: &Path) -> Result<Pem, CredentialFileError> {
    Ok(Pem {
        path: path.to_owned(),
        content: bytes(path)?,
    })
}

fn bytes(path: &Path) -> Result<Vec<u8>, CredentialFileError> {
    let unreadable = |source| CredentialFileError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let mut content = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(LIMIT + 1)
        .read_to_end(&mut content)
        .map_err(unreadable)?;
    if content.len() as u64 > LIMIT {
        return Err(wrong(path, "is larger than 1 MiB"));
    }
    Ok(content)
}

/// The error for invalid content.
pub(super) fn wrong(path: &Path, why: impl Into<String>) -> CredentialFileError {
    CredentialFileError::Wrong {
        path: path.to_owned(),
        why: why.into(),
    }
}
