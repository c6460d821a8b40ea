//! Tests of what is written to the server, against one that is a map.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use detector_fleet::{
    Version,
    objects::ConflictState,
    samples::{cause, report},
};

use super::*;

/// The conflict within `node`, with this text in its column.
fn spec(node: &str, pods: &str) -> ConflictSpec {
    let mut spec = report("10.244.1.5").conflict;
    spec.scope = ConflictScope::Node;
    spec.pods = pods.to_owned();
    for claimant in &mut spec.claimants {
        claimant.party.node = node.to_owned();
    }
    spec
}

/// The same at its end.
fn resolved(spec: ConflictSpec, at: WallTime) -> ConflictSpec {
    ConflictSpec {
        state: ConflictState::Resolved,
        resolved_at: Some(at),
        ..spec
    }
}

/// The objects of one node at a server.
struct World {
    local: LocalConflicts,
    now: Timestamp,
    objects: BTreeMap<String, Stored<ConflictSpec>>,
    next_version: u64,
    /// Requests that were sent, newest last.
    sent: Vec<&'static str>,
    /// Its schema has no `cause`.
    knows_no_causes: bool,
}

impl World {
    fn new() -> Self {
        Self {
            local: LocalConflicts::new("a".to_owned()),
            now: Timestamp(1_000_000_000_000),
            objects: BTreeMap::new(),
            next_version: 1,
            sent: Vec::new(),
            knows_no_causes: false,
        }
    }

    fn want(&mut self, name: &str, spec: Option<ConflictSpec>) {
        self.local.set(ConflictUpdate {
            name: name.to_owned(),
            spec: spec.map(Box::new),
        });
    }

    /// The time as both clocks have it.
    fn time(&self) -> (Timestamp, WallTime) {
        let nanos = i64::try_from(self.now.0).unwrap();
        (self.now, WallTime::from_unix_nanos(nanos).unwrap())
    }

    /// The conflict is over now.
    fn end(&mut self, name: &str) {
        let over = resolved(spec("a", "one"), self.time().1);
        self.want(name, Some(over));
    }

    fn is_resolved(&self, name: &str) -> bool {
        self.objects[name].spec.is_resolved()
    }

    /// Does what is due until then.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.local.next_due().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.settle();
        }
        self.now = end;
    }

    fn store(&mut self, name: &str, mut spec: ConflictSpec) -> Stored<ConflictSpec> {
        spec.cause.take_if(|_| self.knows_no_causes);
        if let Some(unchanged) = self.objects.get(name).filter(|have| have.spec == spec) {
            return unchanged.clone();
        }
        let version = Version {
            uid: name.to_owned(),
            resource_version: self.next_version.to_string(),
        };
        self.next_version += 1;
        let stored = Stored { version, spec };
        self.objects.insert(name.to_owned(), stored.clone());
        stored
    }

    fn serve(&mut self, name: &str, request: Request) -> Outcome {
        let is_current = |version: &Version, stored: &Stored<_>| stored.version == *version;
        let stored = self.objects.get(name).cloned();
        match (request, stored) {
            (Request::CreateConflict(_), Some(_)) => Outcome::AlreadyExists,
            (Request::CreateConflict(spec), None) => Outcome::Conflict(self.store(name, spec)),
            (Request::GetConflict, Some(stored)) => Outcome::Conflict(stored),
            (_, None) => Outcome::NotFound,
            (Request::ReplaceConflict(version, spec), Some(stored)) => {
                if is_current(&version, &stored) {
                    Outcome::Conflict(self.store(name, spec))
                } else {
                    Outcome::Outdated
                }
            }
            (Request::DeleteConflict(version), Some(stored)) => {
                if is_current(&version, &stored) {
                    self.objects.remove(name);
                    Outcome::Deleted
                } else {
                    Outcome::Outdated
                }
            }
            (other, _) => panic!("{other:?}"),
        }
    }

    /// A list has these.
    fn list(&mut self, objects: Vec<(String, Stored<ConflictSpec>)>) {
        self.local.list_begins();
        for (name, stored) in objects {
            self.local.found(self.time(), name, stored);
        }
        self.local.list_ends();
    }

    /// The next request; it is not answered.
    fn send(&mut self) -> Option<(String, Request)> {
        let (name, request) = self.local.next_request(self.now)?;
        self.sent.push(match request {
            Request::CreateConflict(_) => "create",
            Request::GetConflict => "get",
            Request::ReplaceConflict(..) => "replace",
            _ => "delete",
        });
        Some((name, request))
    }

    /// Sends and answers all that is due now.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let Some((name, request)) = self.send() else {
                return;
            };
            let outcome = self.serve(&name, request);
            self.local.answer(self.time(), &name, outcome);
        }
        panic!("it never rests: {:?}", &self.sent[self.sent.len() - 10..]);
    }

    fn pods(&self, name: &str) -> Option<&str> {
        self.objects.get(name).map(|stored| &*stored.spec.pods)
    }

    /// The requests since the last call.
    fn sent(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.sent)
    }
}

#[test]
fn object_is_created_replaced_and_deleted() {
    let mut world = World::new();
    world.local.complete();
    world.want("x", Some(spec("a", "one")));
    world.settle();
    assert_eq!(world.pods("x"), Some("one"));
    world.want("x", Some(spec("a", "two")));
    world.settle();
    assert_eq!(world.pods("x"), Some("two"));
    world.want("x", None);
    world.settle();
    assert_eq!(world.pods("x"), None);
    assert_eq!(world.sent(), ["create", "replace", "delete"]);
    assert_eq!(world.local.next_due(), None);
    world.want("y", None);
    assert!(world.local.entries.is_empty(), "nothing is left to follow");
}

/// The same conflict with its cause.
fn explained() -> ConflictSpec {
    let mut spec = spec("a", "one");
    spec.set_cause(Some(&cause()));
    spec
}

#[test]
fn cause_that_becomes_known_is_one_write() {
    for knows_no_causes in [false, true] {
        let mut world = World::new();
        world.knows_no_causes = knows_no_causes;
        world.local.complete();
        world.want("x", Some(spec("a", "one")));
        world.settle();
        world.want("x", Some(explained()));
        world.settle();
        assert_eq!(world.sent(), ["create", "replace"]);
        assert_eq!(world.local.next_due(), None);
        // Everything else is still written.
        world.want("x", Some(spec("a", "two")));
        world.settle();
        assert_eq!(world.pods("x"), Some("two"));
        let cause = world.objects["x"].spec.cause.clone();
        assert_eq!(cause.is_none(), knows_no_causes);
    }
}

#[test]
fn restart_keeps_the_cause_until_another_one_is_known() {
    // The object is found before or after the conflict.
    for is_found_first in [false, true] {
        let mut world = World::new();
        let stored = world.store("x", explained());
        let list = vec![("x".to_owned(), stored)];
        if is_found_first {
            world.list(list.clone());
        }
        world.want("x", Some(spec("a", "one")));
        world.list(list);
        world.local.complete();
        world.settle();
        assert!(!world.sent().contains(&"replace"), "{is_found_first}");
        let mut other = explained();
        other.cause.as_mut().unwrap().name = "ipam_state_wiped".to_owned();
        world.want("x", Some(other.clone()));
        world.settle();
        assert_eq!(world.sent(), ["replace"]);
        assert_eq!(world.objects["x"].spec, other);
    }
}

#[test]
fn same_state_again_is_no_request() {
    let mut world = World::new();
    world.local.complete();
    world.want("x", Some(spec("a", "one")));
    world.settle();
    let stored = world.objects["x"].clone();
    world.sent();
    world.want("x", Some(spec("a", "one")));
    world
        .local
        .found(world.time(), "x".to_owned(), stored.clone());
    world.list(vec![("x".to_owned(), stored)]);
    world.settle();
    assert_eq!(world.sent(), [""; 0]);
}

#[test]
fn object_that_ends_before_it_was_created_is_never_written() {
    let mut world = World::new();
    world.want("x", Some(spec("a", "one")));
    world.want("x", None);
    world.settle();
    assert_eq!(world.sent(), [""; 0]);
}

#[test]
fn change_while_a_request_is_under_way_follows_it() {
    let mut world = World::new();
    world.local.complete();
    world.want("x", Some(spec("a", "one")));
    let (name, create) = world.send().unwrap();
    world.want("x", Some(spec("a", "two")));
    assert_eq!(world.send(), None, "one request at a time");
    let outcome = world.serve(&name, create);
    world.local.answer(world.time(), &name, outcome);
    world.settle();
    assert_eq!(world.pods("x"), Some("two"));
}

#[test]
fn what_an_earlier_run_left_is_deleted_once_the_state_is_complete() {
    let mut world = World::new();
    let old = world.store("old", spec("a", "gone"));
    let kept = world.store("kept", spec("a", "one"));
    world.list(vec![("old".to_owned(), old), ("kept".to_owned(), kept)]);
    world.want("kept", Some(spec("a", "one")));
    world.settle();
    assert_eq!(world.sent(), [""; 0]);
    world.local.complete();
    world.settle();
    assert_eq!(world.sent(), ["delete"]);
    assert_eq!(world.pods("kept"), Some("one"));
}

#[test]
fn object_that_another_one_changed_or_deleted_is_restored() {
    let mut world = World::new();
    world.local.complete();
    world.want("x", Some(spec("a", "one")));
    world.settle();
    let stored = world.store("x", spec("a", "defaced"));
    world.local.found(world.time(), "x".to_owned(), stored);
    world.settle();
    assert_eq!(world.pods("x"), Some("one"));
    world.objects.clear();
    world.local.gone("x");
    world.settle();
    assert_eq!(world.pods("x"), Some("one"));
    world.objects.clear();
    world.list(Vec::new());
    world.settle();
    assert_eq!(world.pods("x"), Some("one"));
}

#[test]
fn object_of_another_node_with_the_same_name_is_not_touched() {
    let mut world = World::new();
    world.local.complete();
    for foreign in [spec("b", "theirs"), report("10.244.1.5").conflict] {
        world.store("x", foreign.clone());
        world.want("x", Some(spec("a", "one")));
        world.settle();
        assert_eq!(world.objects["x"].spec, foreign);
        world.want("x", None);
        world.settle();
        assert_eq!(world.objects["x"].spec, foreign);
        world.now = world.now + AFTER_REJECTION;
        world.settle();
        assert_eq!(world.objects["x"].spec, foreign);
        world.objects.clear();
        world.now = world.now + AFTER_REJECTION;
        world.settle();
    }
    assert!(!world.sent().contains(&"delete"));
}

#[test]
fn only_conflicts_within_the_node_are_its_own() {
    let own = spec("a", "");
    assert!(is_within(&own, "a"));
    assert!(!is_within(&own, "b"));
    let mut across = own.clone();
    across.claimants[0].party.node = "b".to_owned();
    assert!(!is_within(&across, "a"));
    let fleet = ConflictSpec {
        scope: ConflictScope::Fleet,
        ..own.clone()
    };
    assert!(!is_within(&fleet, "a"));
    let empty = ConflictSpec {
        claimants: Vec::new(),
        ..own
    };
    assert!(!is_within(&empty, "a"));
}

#[test]
fn lost_answer_is_read_again_before_anything_is_written() {
    for takes_effect in [false, true] {
        let mut world = World::new();
        world.local.complete();
        world.want("x", Some(spec("a", "one")));
        let (name, create) = world.send().unwrap();
        if takes_effect {
            world.serve(&name, create);
        }
        world.local.answer(world.time(), &name, Outcome::Failed);
        assert_eq!(world.send(), None, "not at once");
        world.now = world.local.next_due().unwrap();
        world.settle();
        assert_eq!(world.pods("x"), Some("one"));
        let expected: &[_] = if takes_effect {
            &["create", "get"]
        } else {
            &["create", "get", "create"]
        };
        assert_eq!(world.sent(), expected);
    }
}

#[test]
fn refused_request_is_repeated_rarely() {
    let mut world = World::new();
    world.local.complete();
    world.want("x", Some(spec("a", "one")));
    let (name, _) = world.send().unwrap();
    world.local.answer(world.time(), &name, Outcome::Rejected);
    assert_eq!(world.send(), None);
    assert_eq!(world.local.next_due(), Some(world.now + AFTER_REJECTION));
}

#[test]
fn writes_are_bounded_in_the_long_run() {
    let mut world = World::new();
    world.local.complete();
    let end = world.now + Duration::from_secs(600);
    let mut comes = true;
    while world.now < end {
        world.want("x", comes.then(|| spec("a", "one")));
        comes = !comes;
        world.settle();
        world.now = world.now + Duration::from_millis(100);
    }
    let writes = world.sent().len();
    assert!((400..=128 + 300).contains(&writes), "{writes}");
    // When it rests, the last state is written.
    world.want("x", None);
    while let Some(due) = world.local.next_due() {
        world.now = due;
        world.settle();
    }
    assert_eq!(world.pods("x"), None);
}

#[test]
fn followed_objects_are_bounded() {
    let mut world = World::new();
    let foreign = (0..2 * MAX_FOLLOWED).map(|n| (format!("left-{n}"), spec("a", "old")));
    let stored: Vec<_> = foreign
        .map(|(name, spec)| {
            let stored = world.store(&name, spec);
            (name, stored)
        })
        .collect();
    world.list(stored);
    assert_eq!(world.local.entries.len(), MAX_FOLLOWED);
}

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn conflict_that_is_over_is_kept_for_an_hour() {
    let mut world = World::new();
    world.local.complete();
    world.want("x", Some(spec("a", "one")));
    world.settle();
    world.end("x");
    world.settle();
    assert!(world.is_resolved("x"));
    let stored = world.objects["x"].clone();
    world.local.found(world.time(), "x".to_owned(), stored);
    world.pass(59 * MINUTE);
    assert_eq!(world.sent(), ["create", "replace"]);
    world.pass(MINUTE);
    assert_eq!(world.sent(), ["delete"]);
    assert!(world.objects.is_empty());
    world.want("y", None);
    assert!(world.local.entries.is_empty());
}

#[test]
fn conflict_that_begins_again_is_open_again() {
    for is_answered in [true, false] {
        let mut world = World::new();
        world.local.complete();
        world.want("x", Some(spec("a", "one")));
        world.settle();
        world.end("x");
        let (name, end) = world.send().unwrap();
        let ended = world.serve(&name, end);
        if is_answered {
            world.local.answer(world.time(), &name, ended.clone());
        }
        world.want("x", Some(spec("a", "two")));
        if !is_answered {
            world.local.answer(world.time(), &name, ended);
        }
        world.settle();
        assert!(!world.is_resolved("x"));
        world.pass(120 * MINUTE);
        assert_eq!(world.pods("x"), Some("two"));
    }
}

#[test]
fn what_was_never_created_is_not_kept() {
    for is_sent in [false, true] {
        let mut world = World::new();
        world.local.complete();
        world.want("x", Some(spec("a", "one")));
        let sent = is_sent.then(|| world.send().unwrap().0);
        world.end("x");
        if let Some(name) = sent {
            world.local.answer(world.time(), &name, Outcome::Failed);
        }
        world.pass(MINUTE);
        assert!(world.objects.is_empty());
        world.want("y", None);
        assert!(world.local.entries.is_empty());
    }
}

#[test]
fn open_ones_take_the_place_of_the_oldest_resolved_ones() {
    let mut world = World::new();
    world.local.complete();
    // Sorted by age.
    let name = |n: usize| format!("{n:03}");
    let begin = |world: &mut World, n| {
        world.want(&name(n), Some(spec("a", "one")));
        world.pass(Duration::from_secs(2));
    };
    for n in 0..MAX_PUBLISHED {
        begin(&mut world, n);
        world.end(&name(n));
        world.pass(Duration::from_secs(2));
    }
    assert_eq!(world.objects.len(), MAX_PUBLISHED);
    assert!(!world.local.has_room());
    for n in 0..10 {
        begin(&mut world, MAX_PUBLISHED + n);
    }
    world.pass(MINUTE);
    let names: Vec<_> = world.objects.keys().cloned().collect();
    assert_eq!(names, Vec::from_iter((10..MAX_PUBLISHED + 10).map(name)));
    // Their own place is still there when they end.
    for n in 0..10 {
        world.end(&name(MAX_PUBLISHED + n));
    }
    world.pass(MINUTE);
    assert_eq!(world.objects.len(), MAX_PUBLISHED);
    assert!(names.iter().all(|name| world.is_resolved(name)));
    world.pass(60 * MINUTE);
    assert!(world.objects.is_empty() && world.local.has_room());
}

#[test]
fn what_ends_without_a_place_is_deleted() {
    let mut world = World::new();
    world.local.complete();
    let names: Vec<_> = (0..MAX_PUBLISHED + 10).map(|n| n.to_string()).collect();
    for name in &names {
        world.want(name, Some(spec("a", "one")));
    }
    world.pass(MINUTE);
    for name in &names {
        world.end(name);
    }
    world.pass(10 * MINUTE);
    assert_eq!(world.objects.len(), MAX_PUBLISHED);
}

#[test]
fn resolved_ones_of_an_earlier_run_are_deleted_an_hour_after_their_end() {
    for (ago, kept) in [
        (Some(50), 10),
        (Some(0), 60),
        (Some(90), 0),
        // The clock was set back.
        (Some(-30), 60),
        (None, 0),
    ] {
        let mut world = World::new();
        let now = world.time().1.as_unix_nanos();
        let at = ago.map(|ago| i64::try_from(now).unwrap() - ago * 60_000_000_000);
        let at = at.and_then(WallTime::from_unix_nanos);
        let mut over = resolved(report("10.244.1.5").conflict, world.time().1);
        over.resolved_at = at;
        let stored = world.store("10.244.1.5", over);
        world.list(vec![("10.244.1.5".to_owned(), stored)]);
        // Whether all claims of the node are known does not matter.
        world.pass((kept * MINUTE).saturating_sub(MINUTE));
        assert_eq!(world.objects.is_empty(), kept == 0, "{ago:?}");
        world.pass(MINUTE);
        assert!(world.objects.is_empty(), "{ago:?}");
    }
}

#[test]
fn resolved_one_that_another_agent_deleted_is_forgotten() {
    for again in [false, true] {
        let mut world = World::new();
        let open = report("10.244.1.5").conflict;
        let over = resolved(open.clone(), world.time().1);
        let stored = world.store("10.244.1.5", over);
        world
            .local
            .found(world.time(), "10.244.1.5".to_owned(), stored);
        assert!(world.local.entries["10.244.1.5"].is_kept());
        world.objects.clear();
        if again {
            world.store("10.244.1.5", open);
        }
        world.local.gone("10.244.1.5");
        world.pass(120 * MINUTE);
        assert_eq!(world.sent(), ["get"]);
        assert_eq!(world.objects.len(), usize::from(again));
        world.want("y", None);
        assert!(world.local.entries.is_empty());
    }
}
