//! `cargo xtask package`: checks that the library can be published, and builds with each feature.
//!
//! # What must hold
//!
//! - Every crate of the workspace without `publish = false` is packed and built from its package
//!   alone, against the other packages and not against their folders.
//! - `buttress` builds without a warning with every set of its features, including the empty set.

use std::process::ExitCode;

use clap::Args;
use serde::Deserialize;

use crate::programs;

/// The library that programs embed.
const LIBRARY: &str = "buttress";

/// What to do.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only try the combinations of features.
    #[arg(long)]
    features: bool,
    /// Also pack changes that are not committed.
    #[arg(long)]
    allow_dirty: bool,
}

/// Cargo's metadata of the workspace.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    /// The registries to which the package may be published. `None` if it may go to all.
    publish: Option<Vec<String>>,
    features: std::collections::BTreeMap<String, Vec<String>>,
}

impl Package {
    fn is_public(&self) -> bool {
        self.publish.as_ref().is_none_or(|registries| !registries.is_empty())
    }
}

/// Packs the crates, and builds the packages.
pub(crate) fn run(options: &Options) -> ExitCode {
    match run_all(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("package: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_all(options: &Options) -> Result<(), String> {
    let metadata = metadata()?;
    for words in feature_words(&metadata)? {
        cargo(&words)?;
    }
    if options.features { Ok(()) } else { cargo(&package_words(&metadata, options.allow_dirty)) }
}

fn metadata() -> Result<Metadata, String> {
    let words = ["metadata", "--no-deps", "--format-version=1"];
    let answer = programs::cargo().args(words).output();
    let answer = answer.map_err(|error| format!("cargo: {error}"))?;
    if !answer.status.success() {
        return Err(String::from_utf8_lossy(&answer.stderr).into_owned());
    }
    serde_json::from_slice(&answer.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

/// The command lines that check the library with each set of features.
fn feature_words(metadata: &Metadata) -> Result<Vec<Vec<String>>, String> {
    let library = metadata.packages.iter().find(|package| package.name == LIBRARY);
    let library = library.ok_or(format!("there is no crate {LIBRARY}"))?;
    let names: Vec<&str> =
        library.features.keys().map(String::as_str).filter(|name| *name != "default").collect();
    let plain = ["clippy", "--quiet", "--lib", "--package", LIBRARY, "--no-default-features"];
    let words_of = |set: u32| {
        let chosen = names.iter().enumerate().filter(|(bit, _)| set >> bit & 1 == 1);
        let chosen: Vec<&str> = chosen.map(|(_, name)| *name).collect();
        let features = format!("--features={}", chosen.join(","));
        let words = plain.iter().copied().chain([features.as_str(), "--", "-D", "warnings"]);
        words.map(str::to_owned).collect()
    };
    Ok((0..1 << names.len()).map(words_of).collect())
}

/// The command line that packs and builds each public crate.
fn package_words(metadata: &Metadata, allow_dirty: bool) -> Vec<String> {
    let mut words = vec!["package".to_owned(), "--locked".to_owned()];
    if allow_dirty {
        words.push("--allow-dirty".to_owned());
    }
    for package in metadata.packages.iter().filter(|package| package.is_public()) {
        words.extend(["--package".to_owned(), package.name.clone()]);
    }
    words
}

fn cargo(words: &[String]) -> Result<(), String> {
    println!("==== cargo {}", words.join(" "));
    // Only the success of the build counts, so no debug information is made.
    let status = programs::cargo().args(words).env("CARGO_PROFILE_DEV_DEBUG", "0").status();
    let status = status.map_err(|error| format!("cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo {}: {status}", words.join(" "))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Metadata {
        let text = r#"{"packages": [
            {"name": "buttress", "publish": null,
             "features": {"default": [], "lzo": [], "zstd": []}},
            {"name": "buttress-cli", "publish": [], "features": {}}
        ]}"#;
        serde_json::from_str(text).expect("it is well formed")
    }

    #[test]
    fn package_takes_public_crates_alone() {
        let words = package_words(&sample(), true);
        assert_eq!(words[1..], ["--locked", "--allow-dirty", "--package", "buttress"]);
    }

    #[test]
    fn features_are_tried_in_every_set() {
        let all = feature_words(&sample()).expect("the library is there");
        let sets: Vec<&str> =
            all.iter().flatten().filter_map(|word| word.strip_prefix("--features=")).collect();
        assert_eq!(sets, ["", "lzo", "zstd", "lzo,zstd"]);
        assert!(all.iter().all(|words| words.ends_with(&["warnings".to_owned()])));
    }
}
