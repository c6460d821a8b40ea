//! The API's lists: parameters, pages, single items, and their description in OpenAPI.

use std::collections::BTreeSet;

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Frame, FrameSender, Node, Pod, PodSpec, contract,
    event::{ANOMALY_RAISED, RAISED},
    http::TestClient,
    until,
};
use serde_json::Value;

use crate::AGENT;

const ADDRESSES: [&str; 5] = [
    "10.244.2.1",
    "10.244.2.2",
    "10.244.2.3",
    "10.244.2.4",
    "fd00:2::5",
];

/// Two pods that both have each of [`ADDRESSES`], so that there are as many conflicts.
fn conflicts(node: &Node, agent: &Agent) -> Vec<Pod> {
    let spec = |device| {
        let all = ADDRESSES.iter();
        all.fold(PodSpec::new(device).ipv6(), |spec, address| {
            let length = if address.contains(':') { 128 } else { 32 };
            spec.address(format!("{address}/{length}"))
        })
    };
    let pods = node.add_pods(&[spec("vetha"), spec("vethb")]).unwrap();
    agent
        .wait_until(DEADLINE, |events| {
            let raised = events.iter().filter(|e| e.event.kind == RAISED);
            let raised: BTreeSet<_> = raised.map(|e| e.event.subject.as_str()).collect();
            ADDRESSES.iter().all(|address| raised.contains(address))
        })
        .unwrap();
    pods
}

fn get(client: &TestClient<'_>, path: &str) -> Value {
    let answer = client.get(path).unwrap();
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.json().unwrap()
}

fn strings(items: &Value, field: &str) -> Vec<String> {
    let items = items.as_array().unwrap().iter();
    let of = |item: &Value| item[field].as_str().unwrap().to_owned();
    items.map(of).collect()
}

/// All items of a list, read in pages of `limit`.
fn read_pages(client: &TestClient<'_>, path: &str, list: &str, limit: usize) -> Vec<Value> {
    let mut items = Vec::new();
    let mut cursor = String::new();
    for _ in 0..100 {
        let page = get(client, &format!("{path}?limit={limit}{cursor}"));
        let found = page[list].as_array().unwrap();
        items.extend(found.iter().cloned());
        let Some(next) = page["next"].as_str() else {
            return items;
        };
        assert_eq!(found.len(), limit, "{page}");
        cursor = format!("&cursor={next}");
    }
    panic!("the list has no end: {cursor}");
}

#[test]
fn pages_are_the_whole_list_in_its_order() {
    let node = Node::new("pages").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let _pods = conflicts(&node, &agent);
    let client = TestClient::of_agent(&node);
    let all = get(&client, "/api/v1/conflicts");
    assert_eq!(all["next"], Value::Null);
    let all = strings(&all["conflicts"], "conflict_id");
    assert_eq!(all.len(), ADDRESSES.len());
    for limit in [1, 2, 5, 6] {
        let pages = read_pages(&client, "/api/v1/conflicts", "conflicts", limit);
        assert_eq!(strings(&pages.into(), "conflict_id"), all, "{limit}");
    }
    let place = |claim: &Value| (claim["address"].to_string(), claim["device"].to_string());
    let places = |claims: &[Value]| claims.iter().map(place).collect::<Vec<_>>();
    let whole = || places(get(&client, "/api/v1/claims")["claims"].as_array().unwrap());
    for limit in [1, 3, 10_000] {
        // A page may end between two claims of one address. The kernel adds link-local addresses
        // by itself, so only pages of a list that did not change meanwhile are compared.
        let compare = || {
            let before = whole();
            let pages = places(&read_pages(&client, "/api/v1/claims", "claims", limit));
            ensure!(whole() == before, "the list changed while it was read");
            assert_eq!(pages, before, "{limit}");
            Ok(())
        };
        until(DEADLINE, "the list to stay as it is", compare).unwrap();
    }
}

#[test]
fn parameters_select_and_bad_ones_are_named() {
    let node = Node::new("filters").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let mut pods = conflicts(&node, &agent);
    let client = TestClient::of_agent(&node);
    let count = |query: &str| {
        let answer = get(&client, &format!("/api/v1/conflicts?{query}"));
        let count = |list: &str| answer[list].as_array().unwrap().len();
        (count("conflicts"), count("resolved"))
    };
    pods[1].remove_address("10.244.2.4/32").unwrap();
    agent.wait_resolved("10.244.2.4").unwrap();
    for (query, expected) in [
        ("", (4, 1)),
        ("state=active", (4, 0)),
        ("state=resolved", (0, 1)),
        ("kind=duplicate", (4, 1)),
        ("kind=host", (0, 0)),
        ("address=10.244.2.4", (0, 1)),
        ("address=fd00%3A2%3A%3A5&state=active", (1, 0)),
        ("network=node", (4, 1)),
        ("network=bridge:br0", (0, 0)),
        ("namespace=shop", (0, 0)),
        // The resolved ones follow on the last page.
        ("limit=4", (4, 1)),
        ("limit=3", (3, 0)),
    ] {
        assert_eq!(count(query), expected, "{query}");
    }
    let claims = get(&client, "/api/v1/claims?network=node&address=10.244.2.1");
    assert_eq!(claims["claims"].as_array().unwrap().len(), 2);
    for (path, parameter) in [
        ("conflicts?limit=0", "limit"),
        ("conflicts?limit=many", "limit"),
        ("conflicts?state=open", "state"),
        ("conflicts?kind=ipam_drift", "kind"),
        ("conflicts?cursor=7", "cursor"),
        ("conflicts?adress=10.0.0.1", "adress"),
        ("conflicts?kind=host&kind=host", "kind"),
        ("anomalies?kind=duplicate", "kind"),
        ("anomalies?cursor=10.244.2.1~0", "cursor"),
        ("anomalies?network=node", "network"),
        ("claims?network=east", "network"),
        ("claims?address=10.244.2", "address"),
        ("claims?reasons=twice", "reasons"),
        ("openapi.json?limit=1", "limit"),
        (
            "conflicts/00000000000000000000000000000000?limit=1",
            "limit",
        ),
    ] {
        let answer = client.get(&format!("/api/v1/{path}")).unwrap();
        let error = answer.json().unwrap()["error"].to_string();
        assert_eq!(answer.status, 400, "{path}: {error}");
        assert!(error.contains(&format!("`{parameter}`")), "{path}: {error}");
    }
    pods.pop();
}

#[test]
fn one_conflict_is_found_by_its_id_also_once_resolved() {
    let node = Node::new("byid").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let mut pods = conflicts(&node, &agent);
    let client = TestClient::of_agent(&node);
    let listed = get(&client, "/api/v1/conflicts?address=10.244.2.3");
    let id = listed["conflicts"][0]["conflict_id"].as_str().unwrap();
    let path = format!("/api/v1/conflicts/{id}");
    let one = get(&client, &path);
    assert_eq!(one["conflict"]["address"], "10.244.2.3");
    assert_eq!(one["conflict"]["state"], "active");
    assert_eq!(one["node"], "testkit");
    pods.pop().unwrap().delete().unwrap();
    agent.wait_resolved("10.244.2.3").unwrap();
    until(DEADLINE, "the resolved conflict", || {
        let one = client.get(&path)?.json()?;
        ensure!(one["conflict"]["state"] == "resolved", "{one}");
        Ok(())
    })
    .unwrap();
    for id in ["00000000000000000000000000000000", "x", "", "a/b"] {
        let answer = client.get(&format!("/api/v1/conflicts/{id}")).unwrap();
        assert_eq!(answer.status, 404, "{id}: {}", answer.body);
    }
}

/// Differences of an answer from the response that the description has for the path and the status.
fn differences(document: &Value, path: &str, status: &str, answer: &Value) -> Vec<String> {
    let response = &document["paths"][path]["get"]["responses"][status];
    let reference = &response["content"]["application/json"]["schema"]["$ref"];
    let validator = contract::validator(document, reference.as_str().unwrap());
    contract::differences(&validator.unwrap(), answer)
}

#[test]
fn history_has_what_ended_newest_first() {
    let node = Node::new("ended").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let client = TestClient::of_agent(&node);
    let pods = conflicts(&node, &agent);
    assert!(get(&client, "/api/v1/history")["history"] == Value::Array(Vec::new()));
    for address in &ADDRESSES[..4] {
        pods[1].remove_address(&format!("{address}/32")).unwrap();
        agent
            .wait_event(DEADLINE, |event| event.resolves(address))
            .unwrap();
    }
    let expected = ["10.244.2.4", "10.244.2.3", "10.244.2.2", "10.244.2.1"];
    until(DEADLINE, "all that ended", || {
        let all = client.get("/api/v1/history")?.json()?;
        ensure!(strings(&all["history"], "address") == expected, "{all}");
        Ok(())
    })
    .unwrap();
    let all = get(&client, "/api/v1/history");
    let pages = read_pages(&client, "/api/v1/history", "history", 3);
    assert_eq!(Value::Array(pages), all["history"]);
    let ids = strings(&all["history"], "conflict_id");
    let third = all["history"][2]["resolved_at"].as_str().unwrap();
    let count = |query: &str| {
        let list = get(&client, &format!("/api/v1/history?{query}"));
        list["history"].as_array().unwrap().len()
    };
    assert_eq!(count(&format!("since={third}")), 3);
    assert_eq!(count(&format!("until={third}")), 1);
    assert_eq!(count("address=10.244.2.3"), 1);
    assert_eq!(count("kind=ipam_drift"), 0);
    let one = get(&client, &format!("/api/v1/conflicts/{}", ids[0]));
    assert_eq!(one["conflict"]["state"], "resolved");
    assert!(one["conflict"]["timeline"].is_array(), "{one}");
}

#[test]
fn answers_match_the_openapi_document() {
    let node = Node::new("openapi").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let client = TestClient::of_agent(&node);
    let document = get(&client, "/api/v1/openapi.json");
    let pods = conflicts(&node, &agent);
    pods[1].remove_address("10.244.2.4/32").unwrap();
    agent.wait_resolved("10.244.2.4").unwrap();
    // So that a diagnosis is among the answers.
    until(DEADLINE, "a diagnosis", || {
        let open = client.get("/api/v1/conflicts")?.json()?;
        ensure!(open["conflicts"][0]["diagnosis"].is_object(), "{open}");
        Ok(())
    })
    .unwrap();
    // A gateway that never answers is an anomaly.
    node.wait_attached(pods[0].device()).unwrap();
    let sender = FrameSender::open(&pods[0]).unwrap();
    let gateway = [10, 244, 2, 254].into();
    let request = Frame::request(pods[0].mac(), [10, 244, 2, 1].into(), gateway);
    for _ in 0..3 {
        sender.send(&request).unwrap();
    }
    agent
        .wait_event(DEADLINE, |event| event.kind == ANOMALY_RAISED)
        .unwrap();

    let mut described: BTreeSet<_> = (document["paths"]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str))
    .collect();
    // Not JSON.
    described.remove("/api/v1/events");
    let mut check = |path: &str, request: &str, status: u16| -> Value {
        let answer = client.get(request).unwrap();
        assert_eq!(answer.status, status, "{request}: {}", answer.body);
        let answer = answer.json().unwrap();
        let differences = differences(&document, path, &status.to_string(), &answer);
        assert_eq!(differences, [""; 0], "{request}: {answer:#}");
        described.remove(path);
        answer
    };
    let ended = check("/api/v1/history", "/api/v1/history?reasons=once", 200);
    assert_eq!(ended["history"][0]["address"], "10.244.2.4", "{ended}");
    check("/api/v1/history", "/api/v1/history?cause=none", 400);
    for list in ["conflicts", "anomalies", "claims"] {
        let path = format!("/api/v1/{list}");
        let all = check(&path, &path, 200);
        assert!(!all[list].as_array().unwrap().is_empty(), "{all}");
        check(&path, &format!("{path}?limit=1"), 200);
        check(&path, &format!("{path}?limit=0"), 400);
        // No source names pods here, for one and the same reason.
        let once = check(&path, &format!("{path}?reasons=once"), 200);
        let reasons = once["pod_unknown_reasons"].as_array().unwrap();
        assert_eq!(reasons.len(), 1, "{once}");
        let reason = reasons[0].as_str().unwrap();
        // The diagnosis says for each fact why it was not checked.
        let mut once = once.clone();
        for item in once[list].as_array_mut().unwrap() {
            item.as_object_mut().unwrap().remove("diagnosis");
        }
        assert_eq!(once.to_string().matches(reason).count(), 1, "{once}");
        assert!(all.to_string().contains(reason), "{all}");
        if list != "claims" {
            let field = format!(
                "{}_id",
                if list == "conflicts" {
                    "conflict"
                } else {
                    "anomaly"
                }
            );
            let id = strings(&all[list], &field).remove(0);
            let item = format!("{path}/{{id}}");
            let one = check(&item, &format!("{path}/{id}"), 200);
            // Only a single item has what happened around it.
            assert!(!all.to_string().contains("\"timeline\""), "{all}");
            assert!(one[field.trim_end_matches("_id")]["timeline"].is_array());
            check(&item, &format!("{path}/none"), 404);
        }
    }
    assert!(described.is_empty(), "not requested: {described:?}");
    // Every parameter of the description is accepted, with each value that it lists.
    for (path, methods) in document["paths"].as_object().unwrap() {
        for parameter in methods["get"]["parameters"].as_array().unwrap() {
            if parameter["in"] != "query" || parameter["name"] == "cursor" {
                continue;
            }
            let name = parameter["name"].as_str().unwrap();
            let example = match name {
                "address" => "10.244.2.1",
                "network" => "vrf:red",
                "since" | "until" => "2026-11-25T08:00:00Z",
                _ => "7",
            };
            let listed = parameter["schema"]["enum"].as_array();
            let listed = listed.into_iter().flatten().filter_map(Value::as_str);
            let mut values: Vec<_> = listed.collect();
            if values.is_empty() {
                values.push(example);
            }
            for value in values {
                get(&client, &format!("{path}?{name}={value}"));
            }
        }
    }
}
