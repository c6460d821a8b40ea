//! What a benchmark needs of the servers: where they are, and which processes they are.

use std::path::PathBuf;

/// How a client of its own reaches the API server, from the control plane's namespace.
#[derive(Clone, Debug)]
pub struct ApiAccess {
    /// The IP address; the port is 443.
    pub address: String,
    /// The file of the certificate that the server's is verified against.
    pub authority: PathBuf,
    /// A name in the server's certificate.
    pub server_name: &'static str,
    /// The administrator's token.
    pub token: &'static str,
}

/// Which controllers and schedulers run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Controllers {
    /// All.
    #[default]
    All,
    /// For Nodes that exist only as objects: the garbage collector, namespaces and service accounts; no scheduler, and nothing
    /// that notices that the Nodes have no kubelet.
    ForSimulatedNodes,
}

/// A server whose process can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// `kube-apiserver`.
    ApiServer,
    /// `etcd`.
    Etcd,
    /// `kube-controller-manager`.
    ControllerManager,
}
