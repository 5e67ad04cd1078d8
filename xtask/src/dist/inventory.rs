//! The parts that the program is linked with: a bill of materials, and the texts of all licences.
//!
//! The lists come from cargo's own resolution for this lock file. C code in packages and what comes
//! with the compiler are added by name. A part without any text of a licence is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::tool::Result;

/// The parts, by name and version, with cargo's metadata of each.
type Parts = BTreeMap<(String, String), Value>;

/// A part that cargo does not list: C code inside a package, or what comes with the compiler.
struct Linked {
    name: &'static str,
    version: String,
    license: &'static str,
    /// The files of its licences.
    texts: Vec<PathBuf>,
}

/// Names of files with licences begin with these words, in any case.
const LICENCE_NAMES: [&str; 6] =
    ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT", "UNLICENSE"];
/// Endings of files that are code in spite of such a name.
const CODE: [&str; 7] = ["rs", "c", "h", "py", "sh", "toml", "json"];
/// The other of two licences, which this project does not choose: package, file.
const NOT_CHOSEN: [(&str, &str); 1] = [("zstd-sys", "zstd/COPYING")];
/// Packages that may lack the text of a licence, each with the reason.
const WITHOUT_TEXT: [(&str, &str); 0] = [];
/// The licences of Rust's standard library and its parts, below the folder of the compiler.
const OF_STD: [&str; 6] =
    ["MIT", "Apache-2.0", "LLVM-exception", "BSD-2-Clause", "ISC", "Unicode-3.0"];

/// Writes the bill of materials, in CycloneDX 1.5.
pub(super) fn bom(to: &Path) -> Result<()> {
    let parts = parts()?;
    let mut components: Vec<Value> = parts
        .iter()
        .map(|((name, version), package)| {
            let declared = package["license"].as_str().unwrap_or("NOASSERTION");
            json!({
                "type": "library",
                "name": name,
                "version": version,
                "purl": format!("pkg:cargo/{name}@{version}"),
                "licenses": [{ "expression": expression(declared) }],
            })
        })
        .collect();
    components.extend(linked(&parts)?.iter().map(|part| {
        json!({
            "type": "library",
            "name": part.name,
            "version": part.version,
            "licenses": [{ "expression": part.license }],
        })
    }));
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

/// The licence of a package as an expression of SPDX. Old packages write a slash for a choice.
fn expression(declared: &str) -> String {
    declared.split('/').map(str::trim).collect::<Vec<_>>().join(" OR ")
}

/// The texts of the licences of all parts. A text that several parts share is listed once.
pub(super) fn licences() -> Result<String> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut list = String::from("Buttress is linked with these parts:\n\n");
    let mut add = |part: String, license: &str, files: &[PathBuf]| {
        writeln!(list, "{part}: {license}").map_err(|error| error.to_string())?;
        for file in files {
            let text = std::fs::read_to_string(file)
                .map_err(|error| format!("{}: {error}", file.display()))?;
            let parts = texts.entry(text).or_default();
            if parts.last() != Some(&part) {
                parts.push(part.clone());
            }
        }
        Ok::<(), String>(())
    };
    let parts = parts()?;
    for ((name, version), package) in &parts {
        let license = expression(package["license"].as_str().unwrap_or("see its text"));
        let folder = folder(package)?;
        let mut files = Vec::new();
        texts_below(folder, &mut files)?;
        files.retain(|file| {
            let is_other = |(other, path): &(&str, &str)| other == name && file.ends_with(path);
            !NOT_CHOSEN.iter().any(is_other)
        });
        if files.is_empty() && !WITHOUT_TEXT.iter().any(|(other, _)| other == name) {
            return Err(format!("{name} {version} has no text of a licence"));
        }
        add(format!("{name} {version}"), &license, &files)?;
    }
    for part in linked(&parts)? {
        add(format!("{} {}", part.name, part.version), part.license, &part.texts)?;
    }
    for (text, parts) in texts {
        let rule = "-".repeat(80);
        write!(list, "\n{rule}\n{}\n{rule}\n\n{text}", parts.join(", "))
            .map_err(|error| error.to_string())?;
    }
    Ok(list)
}

/// The folder of a package.
fn folder(package: &Value) -> Result<&Path> {
    let manifest = package["manifest_path"].as_str().map(Path::new);
    manifest.and_then(Path::parent).ok_or_else(|| format!("{} has no folder", package["name"]))
}

/// Finds the texts of licences in a folder and all folders below it, in order.
fn texts_below(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries =
        std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let upper = |path: &Path| {
        path.file_name().map(|name| name.to_string_lossy().to_uppercase()).unwrap_or_default()
    };
    let is_of_licences = ["LICENSES", "LICENCES"].contains(&upper(folder).as_str());
    for path in paths {
        let is_named = LICENCE_NAMES.iter().any(|word| upper(&path).starts_with(word));
        let is_code = path.extension().is_some_and(|end| CODE.iter().any(|code| end == *code));
        if path.is_dir() {
            texts_below(&path, found)?;
        } else if (is_named || is_of_licences) && !is_code {
            found.push(path);
        }
    }
    Ok(())
}

/// The parts that cargo does not list.
fn linked(parts: &Parts) -> Result<Vec<Linked>> {
    let package = |name: &str| {
        let found = parts.iter().find(|((other, _), _)| other == name);
        found.ok_or_else(|| format!("the program has no {name}; see the list of C parts"))
    };
    let mimalloc = folder(package("libmimalloc-sys")?.1)?.join("c_src/mimalloc/v3");
    let header = mimalloc.join("include/mimalloc.h");
    let header = std::fs::read_to_string(&header)
        .map_err(|error| format!("{}: {error}", header.display()))?;
    let ((_, zstd), zstd_package) = package("zstd-sys")?;
    let rust = told("rustc", &["--version"])?;
    let root = PathBuf::from(told("rustc", &["--print", "sysroot"])?);
    let of_std = |name: &&str| root.join("share/doc/rust/licenses").join(format!("{name}.txt"));
    Ok(vec![
        Linked {
            name: "mimalloc",
            version: mimalloc_version(&header).ok_or("mimalloc.h has no version")?,
            license: "MIT",
            texts: vec![mimalloc.join("LICENSE")],
        },
        Linked {
            name: "zstd",
            version: zstd.split_once("+zstd.").map_or("", |(_, version)| version).to_owned(),
            license: "BSD-3-Clause",
            texts: vec![folder(zstd_package)?.join("zstd/LICENSE")],
        },
        Linked {
            name: "Rust's standard library",
            version: rust.split(' ').nth(1).unwrap_or_default().to_owned(),
            license: "MIT OR Apache-2.0",
            texts: OF_STD.iter().map(of_std).collect(),
        },
        // Rust brings it for its static targets, and tells no version.
        Linked {
            name: "musl",
            version: format!("of rustc {}", rust.split(' ').nth(1).unwrap_or_default()),
            license: "MIT",
            texts: vec![
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/licences/musl.txt"),
            ],
        },
    ])
}

/// The version in a header of mimalloc: one digit, then two and two, or in version 3 the same.
fn mimalloc_version(header: &str) -> Option<String> {
    let line = header.lines().find_map(|line| line.strip_prefix("#define MI_MALLOC_VERSION "))?;
    let number: u32 = line.split_whitespace().next()?.parse().ok()?;
    Some(format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100))
}

/// What a program prints on one line.
fn told(program: &str, words: &[&str]) -> Result<String> {
    let output = Command::new(program).args(words).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_is_a_choice() {
        assert_eq!(expression("MIT/Apache-2.0"), "MIT OR Apache-2.0");
        assert_eq!(expression("Apache-2.0 / MIT"), "Apache-2.0 OR MIT");
        assert_eq!(expression("(MIT OR Apache-2.0) AND Unicode-3.0"), {
            "(MIT OR Apache-2.0) AND Unicode-3.0"
        });
    }

    #[test]
    fn versions_of_mimalloc_are_read() {
        let header = "#pragma once\n#define MI_MALLOC_VERSION 30302   // digits\n";
        assert_eq!(mimalloc_version(header).as_deref(), Some("3.3.2"));
        assert_eq!(mimalloc_version("#define OTHER 1\n"), None);
    }

    /// The C code in packages has a licence of its own, and so has what comes with the compiler.
    #[test]
    fn parts_inside_of_parts_are_listed() {
        let list = licences().expect("every part has a text");
        let bom_file = std::env::temp_dir().join(format!("bom-{}.json", std::process::id()));
        bom(&bom_file).expect("a bill");
        let text = std::fs::read_to_string(&bom_file).expect("its text");
        std::fs::remove_file(&bom_file).expect("it was there");
        for name in ["mimalloc", "zstd", "musl", "Rust's standard library"] {
            assert!(list.lines().any(|line| line.starts_with(&format!("{name} "))), "{name}");
            assert!(text.contains(&format!("\"name\": \"{name}\"")), "{name}");
        }
        assert!(list.contains("the fiat-crypto authors"), "a folder below a package");
        assert!(list.contains("Rich Felker"), "musl");
        assert!(!list.contains("GNU GENERAL PUBLIC LICENSE\n"), "the licence not chosen");
        let document: Value = serde_json::from_str(&text).expect("JSON");
        for part in document["components"].as_array().expect("a list") {
            let license = part["licenses"][0]["expression"].as_str().expect("an expression");
            assert!(!license.contains('/') && license != "NOASSERTION", "{part}");
            assert!(!part["version"].as_str().expect("a version").is_empty(), "{part}");
        }
    }
}
