//! The documentation of each public function states the cost of the function.

const SOURCES: &[(&str, &str)] = &[
    ("boot", include_str!("boot.rs")),
    ("builder", include_str!("builder.rs")),
    ("cursor", include_str!("cursor.rs")),
    ("edit", include_str!("edit.rs")),
    ("geometry", include_str!("geometry.rs")),
    ("merge", include_str!("merge.rs")),
    ("node", include_str!("node.rs")),
    ("overlay", include_str!("overlay.rs")),
    ("roots", include_str!("roots.rs")),
    ("steps", include_str!("steps.rs")),
    ("store", include_str!("store.rs")),
    ("view", include_str!("view.rs")),
];

/// Whether the text says what something costs.
fn has_cost(text: &str) -> bool {
    ["O(", "Costs", "cost is", "cost of"].iter().any(|words| text.contains(words))
}

/// The public functions of a source without a cost, and the number of all of them.
fn without_cost(text: &str) -> (Vec<&str>, usize) {
    let (mut missing, mut count) = (Vec::new(), 0);
    let (mut doc, mut is_in_trait) = (String::new(), false);
    for line in text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default().lines() {
        let words = line.trim_start();
        match line {
            "}" => is_in_trait = false,
            line if line.starts_with("pub trait ") => is_in_trait = true,
            _ => {}
        }
        let is_public = words.starts_with("pub fn ") || is_in_trait && words.starts_with("fn ");
        if is_public {
            count += 1;
            if !has_cost(&doc) {
                missing.push(words);
            }
        }
        if let Some(more) = words.strip_prefix("///") {
            doc.push_str(more);
        } else if !words.starts_with('#') {
            doc.clear();
        }
    }
    (missing, count)
}

#[test]
fn each_public_function_states_its_cost() {
    let mut count = 0;
    for (source, text) in SOURCES {
        let (missing, found) = without_cost(text);
        assert!(missing.is_empty(), "{source}.rs does not say what these cost: {missing:#?}");
        count += found;
    }
    assert!(count > 100, "{count} functions are too few: are their lines read?");
}

#[test]
fn a_function_without_a_cost_is_found() {
    let text = "/// Costs O(1).\npub fn one() {}\n\n/// Finds.\n#[must_use]\npub fn two() {}\n";
    assert_eq!(without_cost(text), (vec!["pub fn two() {}"], 2));
    let text = "pub trait A {\n    /// Finds.\n    fn one();\n}\nfn two() {}\n";
    assert_eq!(without_cost(text), (vec!["fn one();"], 1));
}
