//! Kubeconfig files.

use serde_json::{Value, json};

/// A kubeconfig for one server and user. JSON is valid YAML, which clients expect.
///
/// `authority` is the PEM text that the server's certificate is verified against; it is issued for [`SERVER_NAME`].
pub(super) fn kubeconfig(server: &str, authority: &str, token: &str) -> String {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    let config: Value = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": {
            "server": server,
            "certificate-authority-data": BASE64_STANDARD.encode(authority),
            "tls-server-name": SERVER_NAME,
        }}],
        "users": [{"name": CONTEXT, "user": {"token": token}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT}}],
        "current-context": CONTEXT,
    });
    config.to_string()
}

/// The name of the cluster, its user and its context.
const CONTEXT: &str = "ipconflict";
/// A name in the API server's certificate.
pub(super) const SERVER_NAME: &str = "kubernetes.default.svc";
