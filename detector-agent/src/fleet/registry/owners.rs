//! The uids of Nodes, for the owners of objects.

use std::collections::BTreeMap;

use ::kube::core::ObjectMeta;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// The most Nodes whose uid is remembered.
const NODES: usize = 1024;
/// The most owners of one object.
const OWNERS: usize = 16;

/// What is known of the uids of Nodes, by name: from the Nodes, and from the owners of the objects that their agents wrote.
#[derive(Debug, Default)]
pub(super) struct Owners(BTreeMap<String, String>);

impl Owners {
    pub(super) fn learn(&mut self, node: &str, uid: &str) {
        if node.is_empty() || uid.is_empty() {
            return;
        }
        if self.0.len() >= NODES && !self.0.contains_key(node) {
            self.0.pop_first();
        }
        self.0.insert(node.to_owned(), uid.to_owned());
    }

    pub(super) fn learn_from(&mut self, metadata: &ObjectMeta) {
        let owners = metadata.owner_references.iter().flatten();
        for owner in owners.filter(|owner| owner.kind == "Node").take(OWNERS) {
            // A Node's own uid is never replaced by what an older object says.
            if !self.0.contains_key(&owner.name) {
                self.learn(&owner.name, &owner.uid);
            }
        }
    }

    /// References to these nodes, without those whose uid is unknown.
    pub(super) fn references(&self, nodes: &[&str]) -> Vec<OwnerReference> {
        let mut nodes = nodes.to_vec();
        nodes.sort_unstable();
        nodes.dedup();
        let known = nodes
            .into_iter()
            .filter_map(|node| Some((node, self.0.get(node)?)));
        known
            .take(OWNERS)
            .map(|(node, uid)| OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: node.to_owned(),
                uid: uid.clone(),
                ..OwnerReference::default()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_have_one_entry_for_each_known_node() {
        let mut owners = Owners::default();
        owners.learn("a", "uid-a");
        owners.learn("b", "");
        let metadata = ObjectMeta {
            owner_references: Some(owners.references(&["a"])),
            ..ObjectMeta::default()
        };
        let mut others = Owners::default();
        others.learn_from(&metadata);
        let references = others.references(&["b", "a", "a"]);
        let found: Vec<_> = references.iter().map(|r| (&*r.name, &*r.uid)).collect();
        assert_eq!(found, [("a", "uid-a")]);
        others.learn("a", "uid-a2");
        others.learn_from(&metadata);
        assert_eq!(
            others.references(&["a"]).first().map(|r| &*r.uid),
            Some("uid-a2")
        );
    }

    #[test]
    fn nodes_are_bounded() {
        let mut owners = Owners::default();
        for node in 0..2 * NODES {
            owners.learn(&format!("n{node}"), "uid");
        }
        assert_eq!(owners.0.len(), NODES);
    }
}
