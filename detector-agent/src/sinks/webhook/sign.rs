//! Signatures of the Standard Webhooks specification (symmetric, version `v1`).
//!
//! The signed content is `id.timestamp.body`. There is one signature for each secret, so that during a rotation a receiver
//! may have the old or the new one. Secrets are never shown, not even by `Debug`.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::hmac;

/// The length of a secret in bytes, as specified.
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// What is wrong with a secret. Never contains any of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Not base64.
    #[error(
        "is not a webhook secret: `whsec_` and then base64; make one with: echo whsec_$(openssl rand -base64 32)"
    )]
    Malformed,
    /// Too short to be safe, or too long.
    #[error("has a webhook secret of {0} bytes; the specification requires 24 to 64")]
    Length(usize),
}

/// One signing secret.
#[derive(Clone)]
pub struct Secret(hmac::Key);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Parses `whsec_<base64>`; the prefix is optional, surrounding space is ignored.
    ///
    /// # Errors
    /// See [`SecretError`].
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let text = text.trim();
        let encoded = text.strip_prefix("whsec_").unwrap_or(text);
        let bytes = STANDARD
            .decode(encoded)
            .map_err(|_| SecretError::Malformed)?;
        if !BYTES.contains(&bytes.len()) {
            return Err(SecretError::Length(bytes.len()));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }
}

/// The value of `webhook-signature`: one signature for each secret; `None` without a secret.
#[must_use]
pub fn signature(secrets: &[Secret], id: &str, timestamp: i64, body: &[u8]) -> Option<String> {
    let prefix = format!("{id}.{timestamp}.");
    let signatures: Vec<String> = secrets
        .iter()
        .map(|Secret(key)| {
            let mut context = hmac::Context::with_key(key);
            context.update(prefix.as_bytes());
            context.update(body);
            format!("v1,{}", STANDARD.encode(context.sign()))
        })
        .collect();
    (!signatures.is_empty()).then(|| signatures.join(" "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use super::*;

    /// The test vector of the specification's own libraries.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const TIMESTAMP: i64 = 1_614_265_330;
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    #[test]
    fn signatures_match_the_reference_libraries() {
        let secret = Secret::parse(SECRET).unwrap();
        let bare = Secret::parse(SECRET.trim_start_matches("whsec_")).unwrap();
        for secret in [secret, bare] {
            assert_eq!(
                signature(&[secret], ID, TIMESTAMP, BODY).unwrap(),
                SIGNATURE
            );
        }
    }

    #[test]
    fn every_secret_signs_during_a_rotation() {
        let old = Secret::parse(SECRET).unwrap();
        let new = Secret::parse(&format!("whsec_{}\n", STANDARD.encode([7; 32]))).unwrap();
        let both = signature(&[new, old], ID, TIMESTAMP, BODY).unwrap();
        let parts: Vec<_> = both.split(' ').collect();
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[1], SIGNATURE);
        assert_ne!(parts[0], SIGNATURE);
        assert_eq!(signature(&[], ID, TIMESTAMP, BODY), None);
    }

    #[test]
    fn errors_do_not_contain_the_secret() {
        assert_eq!(
            Secret::parse("whsec_%%%").unwrap_err(),
            SecretError::Malformed
        );
        assert_eq!(
            Secret::parse(&STANDARD.encode([1; 23])).unwrap_err(),
            SecretError::Length(23)
        );
        assert_eq!(
            Secret::parse(&STANDARD.encode([1; 65])).unwrap_err(),
            SecretError::Length(65)
        );
        assert_eq!(format!("{:?}", Secret::parse(SECRET).unwrap()), "Secret");
    }
}
