//! Why an agent cannot be queried.

use hyper::StatusCode;

/// Why the agent cannot be queried.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL is invalid.
    #[error("`{0}` is not a valid agent URL; give one such as http://127.0.0.1:9842 with --url")]
    Url(String),
    /// An https URL without a CA certificate.
    #[error("an https:// URL requires --ca-file with the CA certificate of the agent")]
    NoCa,
    /// A file cannot be used.
    #[error("cannot use the file {path}: {reason}; check {flag}")]
    File {
        /// Path of the file.
        path: String,
        /// The cause.
        reason: String,
        /// The flag that named it.
        flag: &'static str,
    },
    /// No connection.
    #[error(
        "cannot reach the agent at {url}: {reason}; check that `detector-agent run` is running with --listen on this address"
    )]
    Unreachable {
        /// URL of the agent.
        url: String,
        /// The cause.
        reason: String,
    },
    /// No agent at its socket.
    #[error(
        "no agent answers at {socket} ({reason}); check that `detector-agent run` is running in this network namespace with the same --run-dir, or give its address with --url"
    )]
    NoAgent {
        /// The path of the socket.
        socket: String,
        /// The cause.
        reason: String,
    },
    /// The network namespace is unknown, and with it the socket; the sentence.
    #[error("{0}")]
    Namespace(String),
    /// A connection, but no response in time.
    #[error("the agent at {url} does not respond: {reason}")]
    NoResponse {
        /// URL of the agent.
        url: String,
        /// The cause.
        reason: String,
    },
    /// The token is missing or invalid.
    #[error("the agent at {0} requires a valid token; give its file with --token-file")]
    Token(String),
    /// An unexpected status code.
    #[error("the agent at {url} responded with {status}")]
    Status {
        /// URL of the agent.
        url: String,
        /// The status code.
        status: StatusCode,
    },
    /// The response cannot be parsed.
    #[error("invalid response from {url}, which may not be an agent of this version: {reason}")]
    InvalidResponse {
        /// URL of the agent.
        url: String,
        /// The cause.
        reason: String,
    },
    /// The connection ended during a response.
    #[error("lost the connection to the agent: {0}")]
    ConnectionLost(String),
}
