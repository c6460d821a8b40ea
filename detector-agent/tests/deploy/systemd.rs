//! The unit for nodes without Kubernetes. systemd checks it and does not run it; `image` runs the agent with its privileges.

use std::{collections::BTreeSet, fs, process::Command};

use crate::{
    AGENT,
    manifests::build,
    tools::{deploy, read, stdout},
};

const UNIT: &str = "ip-conflict-detector.service";
const EXECUTABLE: &str = "/usr/local/bin/detector-agent";

fn unit() -> String {
    read(deploy("systemd").join(UNIT))
}

/// The value of a setting that the unit has once.
fn setting<'u>(unit: &'u str, name: &str) -> &'u str {
    let mut values = unit
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let value = values.next().unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(values.next(), None, "{name}");
    value
}

#[test]
fn systemd_accepts_the_unit() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(UNIT);
    fs::write(&file, unit().replace(EXECUTABLE, AGENT)).unwrap();
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).arg(&file);
    let result = crate::tools::output(&mut verify);
    let warnings = String::from_utf8_lossy(&result.stderr);
    let ours: Vec<_> = warnings
        .lines()
        .filter(|line| line.contains(UNIT))
        .collect();
    assert!(result.status.success() && ours.is_empty(), "{warnings}");
}

#[test]
fn unit_starts_the_agent_with_the_capabilities_of_the_chart() {
    let unit = unit();
    let command = setting(&unit, "ExecStart");
    let mut words = command.split(' ').map(std::ffi::OsString::from);
    assert_eq!(words.next().unwrap(), EXECUTABLE);
    let arguments = std::iter::once("detector-agent".into()).chain(words);
    detector_agent::config::parse(arguments).unwrap();
    let base = build(&[]);
    let daemonset = base
        .iter()
        .find(|object| object["kind"] == "DaemonSet")
        .unwrap();
    let container = &daemonset["spec"]["template"]["spec"]["containers"][0];
    let added = container["securityContext"]["capabilities"]["add"].as_sequence();
    let of_chart: BTreeSet<_> = added
        .unwrap()
        .iter()
        .map(|name| format!("CAP_{}", name.as_str().unwrap()))
        .collect();
    let bounding = setting(&unit, "CapabilityBoundingSet").split(' ');
    assert_eq!(
        bounding.map(str::to_owned).collect::<BTreeSet<_>>(),
        of_chart
    );
    let memory = &container["resources"]["limits"]["memory"];
    assert_eq!(memory, &format!("{}i", setting(&unit, "MemoryMax")));
    // The directories that systemd creates are those that the agent uses.
    let help = stdout(Command::new(AGENT).args(["run", "--help"]));
    let run = format!("/run/{}", setting(&unit, "RuntimeDirectory"));
    assert!(help.contains(&format!("[default: {run}]")), "{help}");
    assert!(command.ends_with(&format!("/var/lib/{}", setting(&unit, "StateDirectory"))));
}
