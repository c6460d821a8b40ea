//! `cluster`: a real Kubernetes cluster on this machine, with the agent of this checkout installed by its chart.
//!
//! Everything is owned by values that remove it on drop. Ctrl-C only sets a flag, so that the drops run.

use std::{
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode, ExitStatus},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use detector_testkit::{
    cluster::{Cluster, ClusterOptions, Family, Programs, copy_chart},
    image::AgentImage,
};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};

use crate::{
    build::{self, Profile},
    files, host, process, setup,
    stdout::print_line,
    workspace::Workspace,
};

/// The release and its namespace, as in the documents.
const RELEASE: &str = "ip-conflict-detector";
/// How often a wait checks for Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Arguments of `cluster`.
#[derive(clap::Args)]
pub(crate) struct ClusterArgs {
    /// Number of nodes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
    /// Run this shell command in the control plane's network, with KUBECONFIG, kubectl and helm; then end with its exit
    /// status
    #[arg(long, value_name = "CMD")]
    run: Option<String>,
    /// Values for the chart; repeatable
    #[arg(long, value_name = "FILE")]
    values: Vec<PathBuf>,
    /// Import the agent's image, but do not install the chart
    #[arg(long)]
    no_agent: bool,
    /// Nodes, pods and services have IPv6 addresses only
    #[arg(long)]
    ipv6: bool,
    /// Give all nodes the same pod subnet, so that pods on different nodes get the same addresses
    #[arg(long)]
    same_pod_subnet: bool,
    /// Use an unoptimised agent: no rebuild after the tests
    #[arg(long)]
    debug: bool,
    /// Use the image in this OCI archive, for example that of `cargo xtask release`, instead of one built from the checkout
    #[arg(long, value_name = "FILE", conflicts_with = "debug")]
    image: Option<PathBuf>,
}

/// Starts the cluster and waits for the command or for Ctrl-C.
///
/// # Errors
/// The user is not root, a build failed, or a part of the cluster did not start.
pub(crate) fn run(workspace: &Workspace, args: &ClusterArgs) -> Result<ExitCode> {
    host::require_root("the cluster's nodes are network and mount namespaces")?;
    setup::ensure(workspace, &[setup::BUILD, setup::CLUSTER])?;
    let source = match &args.image {
        Some(archive) => ImageSource::Archive(files::absolute(archive)?),
        None => ImageSource::Agent(build::agent(
            workspace,
            Profile::from_debug_flag(args.debug),
        )?),
    };
    let programs = Programs::in_tools(&workspace.tools())?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("could not install a signal handler")?;
    }
    let check_stop = || {
        if stop.load(Ordering::Relaxed) {
            bail!("interrupted; everything was removed");
        }
        Ok(())
    };

    eprintln!("cluster: starting {} node(s)", args.nodes);
    let options = ClusterOptions {
        nodes: args.nodes.into(),
        family: if args.ipv6 { Family::V6 } else { Family::V4 },
        same_pod_subnet: args.same_pod_subnet,
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::start(&programs, &options)?;
    check_stop()?;
    eprintln!("cluster: importing the image");
    import_image(&cluster, workspace, &source)?;
    check_stop()?;
    let chart = copy_chart(workspace.root(), cluster.directory())?;
    if !args.no_agent {
        eprintln!("cluster: installing the chart");
        install(&cluster, &chart, &args.values)?;
        check_stop()?;
    }
    if let Some(command) = &args.run {
        let status = run_command(&cluster, workspace, &chart, command)?;
        return Ok(exit_code(status));
    }
    print_help(&mut cluster, &chart)?;
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(POLL_INTERVAL);
    }
    eprintln!("cluster: stopping");
    drop(cluster);
    print_line("Everything was removed.")?;
    Ok(ExitCode::SUCCESS)
}

/// Where the agent's image comes from.
enum ImageSource {
    /// It is built with this executable.
    Agent(PathBuf),
    /// An OCI archive.
    Archive(PathBuf),
}

/// Imports the image under the name that the chart uses, so that the chart's defaults work.
fn import_image(cluster: &Cluster, workspace: &Workspace, source: &ImageSource) -> Result<()> {
    let agent = match source {
        ImageSource::Agent(agent) => agent,
        ImageSource::Archive(archive) => return cluster.import(archive),
    };
    let directory = cluster.directory().join("image");
    let name = detector_testkit::cluster::chart_image(workspace.root())?;
    let image = AgentImage::build(&directory, workspace.root(), agent, &name, "unknown")?;
    cluster.import(&image.archive())?;
    std::fs::remove_dir_all(&directory)
        .with_context(|| format!("could not remove {}", directory.display()))
}

fn install(cluster: &Cluster, chart: &Path, values: &[PathBuf]) -> Result<()> {
    let mut helm = cluster.command("helm");
    helm.args(["install", RELEASE])
        .arg(chart)
        .args(["--namespace", RELEASE, "--create-namespace"]);
    for file in values {
        // Read before, for an error message without Helm's.
        files::read(file)?;
        helm.arg("--values").arg(file);
    }
    cluster.run(helm)?;
    cluster
        .kubectl(&[
            "--namespace",
            RELEASE,
            "rollout",
            "status",
            &format!("daemonset/{RELEASE}"),
            "--timeout=120s",
        ])
        .map(drop)
        .or_else(|error| {
            let pods = cluster.kubectl(&["--namespace", RELEASE, "describe", "pods"])?;
            Err(error.context(pods))
        })
}

fn run_command(
    cluster: &Cluster,
    workspace: &Workspace,
    chart: &Path,
    command: &str,
) -> Result<ExitStatus> {
    let mut shell = cluster.command("sh");
    shell
        .args(["-c", command])
        .current_dir(workspace.root())
        .env("CHART", chart);
    cluster.netns().run_in(|| status_of(&mut shell))
}

fn status_of(command: &mut Command) -> Result<ExitStatus> {
    process::spawn(command)?
        .wait()
        .context("could not wait for the command")
}

/// The exit status as a shell reports it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

fn print_help(cluster: &mut Cluster, chart: &Path) -> Result<()> {
    let config = cluster.host_config()?;
    let nodes: Vec<&str> = cluster.nodes().iter().map(|node| node.name()).collect();
    let clients = cluster.programs().clients();
    print_line(format_args!(
        "
The cluster runs: {}. In another shell:

  export KUBECONFIG={} PATH={}:$PATH
  kubectl get pods -A -o wide
  kubectl -n {RELEASE} exec ds/{RELEASE} -- /usr/local/bin/detector-agent check
  kubectl -n {RELEASE} port-forward ds/{RELEASE} 9842:9842     # then open http://127.0.0.1:9842/

Two pods with one address, as after a lost IPAM state (without this agent, nothing would report it):

  kubectl run web --image={pause} --image-pull-policy=Never
  kubectl wait --for=condition=Ready pod/web
  nsenter --net --mount --target {} rm -r /var/lib/cni/networks
  kubectl run checkout --image={pause} --image-pull-policy=Never
  kubectl get events --field-selector reason=IPConflict

The chart: {}
Logs of the servers: {}/*.log
Press Ctrl-C to remove everything.",
        nodes.join(", "),
        config.display(),
        clients.display(),
        cluster
            .nodes()
            .first()
            .and_then(|node| node.process_id())
            .unwrap_or_default(),
        chart.display(),
        cluster.directory().display(),
        pause = detector_testkit::cluster::PAUSE_IMAGE,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_status_of_the_command_is_passed_on() {
        let code = |wait_status| format!("{:?}", exit_code(ExitStatus::from_raw(wait_status)));
        assert_eq!(code(0), format!("{:?}", ExitCode::SUCCESS));
        assert_eq!(code(3 << 8), format!("{:?}", ExitCode::from(3)));
        assert_eq!(code(9), format!("{:?}", ExitCode::from(137)));
    }
}
