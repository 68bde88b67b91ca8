//! What is compared of placements. Pure.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

pub(super) use super::super::observe::short_name;
use super::fleet;

/// Scores that are so near are the same.
const NEAR: f64 = 1e-6;

/// Of new allocations each node, and of the first one why. Our further placements of one evaluation share its account.
pub(super) fn placed(allocs: &[Value], evals: &Value) -> Value {
    let mut named: BTreeMap<(String, usize, String), &Value> = BTreeMap::new();
    for alloc in allocs {
        let name = short_name(alloc);
        named.insert((alloc["TaskGroup"].as_str().unwrap_or_default().to_owned(), name.len(), name), alloc);
    }
    let mut tree = Map::new();
    let mut nodes = Map::new();
    let mut group = None;
    for ((of, _, name), alloc) in named {
        nodes.insert(name.clone(), alloc["NodeName"].clone());
        if group.as_ref() != Some(&of) {
            tree.insert(name, account(&alloc["Metrics"]));
            group = Some(of);
        }
    }
    tree.insert("nodes".into(), Value::Object(nodes));
    let newest = evals
        .as_array()
        .into_iter()
        .flatten()
        .filter(|e| e["Status"] == "complete")
        .max_by_key(|e| e["CreateIndex"].as_u64());
    let failed = newest.and_then(|e| e["FailedTGAllocs"].as_object()).cloned().unwrap_or_default();
    tree.insert("failed".into(), failures(&failed));
    Value::Object(tree)
}

/// What a plan says.
pub(super) fn plan(answer: &Value) -> Value {
    let failed = answer["FailedTGAllocs"].as_object().cloned().unwrap_or_default();
    json!({"failed": failures(&failed), "place": answer["Annotations"]["DesiredTGUpdates"]["g"]["Place"]})
}

fn failures(groups: &Map<String, Value>) -> Value {
    let all = groups.iter().map(|(name, metrics)| {
        let mut account = account(metrics);
        account["coalesced"] = metrics["CoalescedFailures"].clone();
        (name.clone(), account)
    });
    Value::Object(all.collect())
}

/// Counts by reason, and scores by node.
fn account(metrics: &Value) -> Value {
    let counts = |name: &str| {
        let all = metrics[name].as_object().into_iter().flatten();
        Value::Object(all.filter(|(_, n)| n.as_i64() != Some(0)).map(|(name, n)| (name.clone(), n.clone())).collect())
    };
    let scores = metrics["ScoreMetaData"].as_array().into_iter().flatten().map(|node| {
        let id = node["NodeID"].as_str().unwrap_or_default();
        let name = (0..fleet::NODES).find(|n| fleet::id(*n) == id).map_or_else(|| id.to_owned(), fleet::name);
        let mut parts: Map<String, Value> = node["Scores"].as_object().cloned().unwrap_or_default();
        parts.retain(|_, score| score.as_f64() != Some(0.0));
        parts.insert("all".into(), node["NormScore"].clone());
        (name, Value::Object(parts))
    });
    json!({
        "evaluated": metrics["NodesEvaluated"],
        "filtered": metrics["NodesFiltered"],
        "exhausted": metrics["NodesExhausted"],
        "in pool": metrics["NodesInPool"],
        "available": counts("NodesAvailable"),
        "why filtered": counts("ConstraintFiltered"),
        "classes filtered": counts("ClassFiltered"),
        "why exhausted": counts("DimensionExhausted"),
        "classes exhausted": counts("ClassExhausted"),
        "scores": Value::Object(scores.collect()),
    })
}

/// Scores that are near enough become the same. A node that only one of the two shows is no difference when it is worth
/// as much as the least that the other shows: five are shown, whichever of equal ones that are.
pub(super) fn agree_about_scores([stock, ours]: &mut [Value; 2]) {
    let (Some(stock), Some(ours)) = (stock.as_object_mut(), ours.as_object_mut()) else { return };
    for (name, stock) in stock {
        let Some(ours) = ours.get_mut(name) else { continue };
        let scores = |account: &mut Value| account.get_mut("scores").and_then(Value::as_object_mut).map(std::mem::take);
        let (Some(mut theirs), Some(mut own)) = (scores(stock), scores(ours)) else { continue };
        agree(&mut theirs, &mut own);
        stock["scores"] = Value::Object(theirs);
        ours["scores"] = Value::Object(own);
    }
}

fn agree(stock: &mut Map<String, Value>, ours: &mut Map<String, Value>) {
    for (node, parts) in &mut *ours {
        let Some(theirs) = stock.get(node).and_then(Value::as_object) else { continue };
        for (part, score) in parts.as_object_mut().into_iter().flatten() {
            if let (Some(a), Some(b)) = (score.as_f64(), theirs.get(part).and_then(Value::as_f64))
                && (a - b).abs() < NEAR
            {
                *score = theirs[part].clone();
            }
        }
    }
    let least = |all: &Map<String, Value>| all.values().filter_map(|p| p["all"].as_f64()).fold(f64::INFINITY, f64::min);
    let (least_stock, least_ours) = (least(stock), least(ours));
    let same_number = stock.len() == ours.len();
    let names: [Vec<String>; 2] = [&*stock, &*ours].map(|all| all.keys().cloned().collect());
    let tied = |parts: &Value, other: f64| parts["all"].as_f64().is_some_and(|score| (score - other).abs() < NEAR);
    stock.retain(|node, parts| names[1].contains(node) || !(same_number && tied(parts, least_ours)));
    ours.retain(|node, parts| names[0].contains(node) || !(same_number && tied(parts, least_stock)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(all: &[(&str, f64)]) -> Value {
        let scores: Map<String, Value> =
            all.iter().map(|(node, score)| ((*node).to_owned(), json!({"all": score, "binpack": score}))).collect();
        json!({"g[0]": {"scores": scores}})
    }

    #[test]
    fn near_scores_and_equal_last_ones_are_the_same() {
        let mut trees = [scores(&[("a", 0.5), ("b", 0.25)]), scores(&[("a", 0.500_000_000_1), ("c", 0.25)])];
        agree_about_scores(&mut trees);
        assert_eq!(trees[0], trees[1]);
        let mut trees = [scores(&[("a", 0.5), ("b", 0.25)]), scores(&[("a", 0.5001), ("b", 0.25)])];
        agree_about_scores(&mut trees);
        assert_ne!(trees[0], trees[1], "too far from each other");
        let mut trees = [scores(&[("a", 0.5), ("b", 0.25)]), scores(&[("a", 0.5), ("c", 0.3)])];
        agree_about_scores(&mut trees);
        assert_ne!(trees[0], trees[1], "one has a better one");
    }

    #[test]
    fn the_first_of_a_group_says_why() {
        let alloc = |name: &str, node: &str| {
            json!({
                "Name": format!("j.{name}"), "TaskGroup": "g", "NodeName": node,
                "Metrics": {"NodesEvaluated": 3,
                    "ScoreMetaData": [{"NodeID": fleet::id(2), "Scores": {"binpack": 0.5, "devices": 0.0},
                        "NormScore": 0.5}]},
            })
        };
        let tree = placed(&[alloc("g[10]", "n01"), alloc("g[9]", "n02")], &json!([]));
        assert_eq!(tree["nodes"], json!({"g[9]": "n02", "g[10]": "n01"}));
        assert_eq!(tree["g[9]"]["scores"], json!({"n02": {"all": 0.5, "binpack": 0.5}}));
        assert!(tree.get("g[10]").is_none());
    }
}
