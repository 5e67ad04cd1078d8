//! The parts that the program is linked with: a bill of materials, and the texts of all licences.
//!
//! The lists come from cargo's own resolution for this lock file. If a part has no text of a
//! licence, the list has the identifiers that the part declares.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::tool::Result;

/// The parts, by name and version, with cargo's metadata of each.
type Parts = BTreeMap<(String, String), Value>;

/// Writes the bill of materials, in CycloneDX 1.5.
pub(super) fn bom(to: &Path) -> Result<()> {
    let component = |((name, version), package): (&(String, String), &Value)| {
        json!({
            "type": "library",
            "name": name,
            "version": version,
            "purl": format!("pkg:cargo/{name}@{version}"),
            "licenses": [{ "expression": package["license"].as_str().unwrap_or("NOASSERTION") }],
        })
    };
    let components: Vec<Value> = parts()?.iter().map(component).collect();
    let version = env!("CARGO_PKG_VERSION");
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": { "type": "application", "name": "buttress", "version": version },
        },
        "components": components,
    });
    let text = serde_json::to_string_pretty(&document).map_err(|error| error.to_string())?;
    std::fs::write(to, text).map_err(|error| format!("{}: {error}", to.display()))
}

/// The texts of the licences of all parts. A text that several parts share is listed once.
pub(super) fn licences() -> Result<String> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut list = String::from("Buttress is linked with these parts:\n\n");
    for ((name, version), package) in &parts()? {
        let license = package["license"].as_str().unwrap_or("see its text");
        writeln!(list, "{name} {version}: {license}").map_err(|error| error.to_string())?;
        let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        let Some(folder) = manifest.parent() else { continue };
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let file = entry.file_name().to_string_lossy().to_uppercase();
            let is_licence = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT"];
            if is_licence.iter().any(|word| file.starts_with(word))
                && let Ok(text) = std::fs::read_to_string(entry.path())
            {
                texts.entry(text).or_default().push(format!("{name} {version}"));
            }
        }
    }
    for (text, parts) in texts {
        let rule = "-".repeat(80);
        write!(list, "\n{rule}\n{}\n{rule}\n\n{text}", parts.join(", "))
            .map_err(|error| error.to_string())?;
    }
    Ok(list)
}

/// Everything from other projects that the shipped program is made of on Linux.
fn parts() -> Result<Parts> {
    let mut cargo = Command::new("cargo");
    cargo.args(["metadata", "--format-version", "1", "--locked"]);
    cargo.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let output = cargo.output().map_err(|error| format!("cargo metadata: {error}"))?;
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo: {error}"))?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages: BTreeMap<String, Value> =
        list(&metadata["packages"]).into_iter().map(|one| (text(&one["id"]), one)).collect();
    let nodes: BTreeMap<String, Value> = list(&metadata["resolve"]["nodes"])
        .into_iter()
        .map(|one| (text(&one["id"]), one))
        .collect();
    let is_program = |one: &&Value| one["name"] == "buttress-cli";
    let program = packages.values().find(is_program).ok_or("no buttress-cli")?;
    let mut open = vec![text(&program["id"])];
    let mut seen = BTreeSet::new();
    let mut parts = Parts::new();
    while let Some(id) = open.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        let Some(package) = packages.get(&id) else { continue };
        if !package["source"].is_null() {
            parts.insert((text(&package["name"]), text(&package["version"])), package.clone());
        }
        for dependency in nodes.get(&id).map(|node| list(&node["deps"])).unwrap_or_default() {
            // Dependencies of tests and of builds are not in the program.
            let is_normal =
                list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            if is_normal {
                open.push(text(&dependency["pkg"]));
            }
        }
    }
    Ok(parts)
}
