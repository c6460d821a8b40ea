//! The values files for common platforms.

use std::{collections::BTreeMap, fs};

use crate::tools::{CHART, deploy, documents, read, render_with};

/// What the comment at the beginning of a values file states.
pub(super) struct Head {
    pub(super) platform: String,
    /// Whether the file was run on the platform.
    pub(super) status: String,
}

/// The heads of all files, by name.
pub(super) fn heads() -> BTreeMap<String, Head> {
    let mut heads = BTreeMap::new();
    for entry in fs::read_dir(deploy(CHART).join("platforms")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = read(&path);
        let comment: Vec<_> = text
            .lines()
            .map_while(|line| line.strip_prefix("# "))
            .collect();
        let comment = comment.join(" ");
        let status = ["Run:", "Not run:"]
            .iter()
            .find_map(|status| comment.find(status));
        let (platform, status) =
            comment.split_at(status.unwrap_or_else(|| panic!("{name}: run or not run?")));
        let head = Head {
            platform: platform.trim().to_owned(),
            status: status.to_owned(),
        };
        heads.insert(name, head);
    }
    heads
}

#[test]
fn every_platform_renders_and_is_listed_as_run_or_not_run() {
    let install = read("docs/install.md");
    let heads = heads();
    assert!(heads.len() > 8);
    for (name, head) in &heads {
        let file = format!("platforms/{name}.yaml");
        for text in render_with(&[&file], "").unwrap().values() {
            drop(documents(text));
        }
        let row = install
            .lines()
            .find(|line| line.starts_with(&format!("| `{file}`")));
        let row = row.unwrap_or_else(|| panic!("docs/install.md does not list {file}"));
        let status = head.status.split(':').next().unwrap().to_lowercase();
        assert!(row.ends_with(&format!("| {status} |")), "{row}");
    }
}

/// OpenShift admits a pod only if constraints allow everything that it asks for.
#[test]
fn openshift_constraints_admit_the_pod() {
    let rendered = render_with(&["platforms/openshift.yaml"], "").unwrap();
    let constraints = documents(&rendered["scc.yaml"]).remove(0);
    let spec = documents(&rendered["daemonset.yaml"]).remove(0)["spec"]["template"]["spec"].clone();
    let context = &spec["containers"][0]["securityContext"];
    assert_eq!(
        constraints["allowedCapabilities"],
        context["capabilities"]["add"]
    );
    assert_eq!(
        constraints["allowPrivilegedContainer"],
        context["privileged"]
    );
    assert_eq!(constraints["allowHostNetwork"], spec["hostNetwork"]);
    assert_eq!(constraints["allowHostPorts"], true);
    assert_eq!(constraints["runAsUser"]["type"], "RunAsAny");
    assert_eq!(context["seLinuxOptions"]["type"], "spc_t");
    assert_eq!(constraints["seLinuxContext"]["type"], "RunAsAny");
    let allowed = constraints["volumes"].as_sequence().unwrap();
    for volume in spec["volumes"].as_sequence().unwrap() {
        let mut kinds = volume.as_mapping().unwrap().keys();
        let kind = kinds.find(|kind| *kind != "name").unwrap();
        assert!(allowed.contains(kind), "{kind:?}");
    }
    assert_eq!(
        constraints["users"][0],
        "system:serviceaccount:ip-conflict-detector:ip-conflict-detector"
    );
}
