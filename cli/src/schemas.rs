//! Checks, in tests, that JSON output has the fields promised in `cli/schemas/`. Knows the few words of JSON Schema they use:
//! `type`, `properties`, `required`, `additionalProperties` and `items`.

use serde::Serialize;
use serde_json::Value;

/// Fails unless `result`, as JSON, is what the schema of this name says.
pub(crate) fn check(name: &str, result: &impl Serialize) {
    let path = format!("{}/schemas/{name}.schema.json", env!("CARGO_MANIFEST_DIR"));
    let schema = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let schema: Value = serde_json::from_str(&schema).expect("a schema is JSON");
    let result = serde_json::to_value(result).expect("a result is JSON");
    let complaints = complaints(&schema, &result, "");
    assert!(complaints.is_empty(), "{name}: {complaints:?} in {result}");
}

fn complaints(schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let types: Vec<&str> = match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect(),
    };
    let actual = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let fits = types.contains(&actual) || (actual == "integer" && types.contains(&"number"));
    if !fits {
        return vec![format!("`{at}` is {actual}, not {types:?}")];
    }
    let mut found = Vec::new();
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        found.extend(complaints(&schema["items"], item, &format!("{at}[{index}]")));
    }
    let Some(object) = value.as_object() else { return found };
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !object.contains_key(name) {
            found.push(format!("`{at}.{name}` is missing"));
        }
    }
    for (name, field) in object {
        let place = format!("{at}.{name}");
        match (schema["properties"].get(name), &schema["additionalProperties"]) {
            (Some(schema), _) => found.extend(complaints(schema, field, &place)),
            (None, schema @ Value::Object(_)) => found.extend(complaints(schema, field, &place)),
            (None, _) => found.push(format!("`{place}` is not in the schema")),
        }
    }
    found
}

#[test]
fn deviations_are_found() {
    let schema = serde_json::json!({
        "type": "object",
        "required": ["a"],
        "properties": {"a": {"type": ["integer", "null"]}, "b": {"type": "array", "items": {"type": "string"}}},
    });
    let find = |value: Value| complaints(&schema, &value, "").len();
    assert_eq!(find(serde_json::json!({"a": 1, "b": ["x"]})), 0);
    assert_eq!(find(serde_json::json!({"a": null})), 0);
    assert_eq!(find(serde_json::json!({"b": [1, "x"]})), 2);
    assert_eq!(find(serde_json::json!({"a": "1", "c": 0})), 2);
    assert_eq!(find(serde_json::json!([])), 1);
}
