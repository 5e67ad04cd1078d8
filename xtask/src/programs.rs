//! Builds what a search runs, and says where it is.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::suite::{Job, What};

/// Where the folder of the fuzzer is, and what it has found before.
pub(crate) const FUZZ: &str = "fuzz";

/// What was built: copies, since a build beside a long search would replace it under way.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    tests: BTreeMap<String, PathBuf>,
    fuzz: Option<PathBuf>,
}

impl Programs {
    /// The program of a job, if it was built.
    pub(crate) fn of(&self, job: &Job) -> Option<PathBuf> {
        match job.what {
            What::Tests { package, .. } => self.tests.get(package).cloned(),
            What::Fuzz => self.fuzz.as_ref().map(|folder| folder.join(job.name)),
        }
    }

    /// Builds the programs of jobs; with `optimized`, tests are as fast as a release.
    pub(crate) fn build(jobs: &[&Job], optimized: bool) -> Result<Self, String> {
        let mut packages: Vec<_> = jobs
            .iter()
            .filter_map(|job| match job.what {
                What::Tests { package, .. } => Some(package),
                What::Fuzz => None,
            })
            .collect();
        packages.sort_unstable();
        packages.dedup();
        let mut programs = Self::default();
        if !packages.is_empty() {
            for (package, program) in tests(&packages, optimized)? {
                // Beside the original: some find what else was built from where they are.
                let copy = program.with_extension(format!("search-{}", std::process::id()));
                programs.tests.insert(package, copy.clone());
                std::fs::copy(&program, &copy).map_err(|e| format!("{}: {e}", copy.display()))?;
            }
        }
        if jobs.iter().any(|job| matches!(job.what, What::Fuzz)) {
            programs.fuzz = Some(targets()?);
        }
        Ok(programs)
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for program in self.tests.values() {
            drop(std::fs::remove_file(program));
        }
    }
}

/// Cargo, as it was called for this.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn tests(packages: &[&str], optimized: bool) -> Result<BTreeMap<String, PathBuf>, String> {
    let mut command = cargo();
    command.args(["test", "--no-run", "--test", "it", "--message-format=json-render-diagnostics"]);
    if optimized {
        command.args(["--profile", "crash"]);
    }
    for package in packages {
        command.args(["--package", package]);
    }
    let output = command.stderr(Stdio::inherit()).output().map_err(|e| format!("cargo: {e}"))?;
    if !output.status.success() {
        return Err("the tests do not build".to_owned());
    }
    let mut programs = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let (Some(program), Some(id)) =
            (message["executable"].as_str(), message["package_id"].as_str())
        else {
            continue;
        };
        if message["profile"]["test"].as_bool() != Some(true) {
            continue;
        }
        // "path+file:///.../crates/fs#buttress-fs@0.1.0", or with the folder's name alone.
        let manifest = message["manifest_path"].as_str().unwrap_or_default();
        for package in packages {
            let folder = package.trim_start_matches("buttress-");
            if id.contains(package) || manifest.ends_with(&format!("/{folder}/Cargo.toml")) {
                programs.insert((*package).to_owned(), PathBuf::from(program));
            }
        }
    }
    Ok(programs)
}

/// Builds the targets of the fuzzer, which needs nightly and cargo-fuzz; answers their folder.
fn targets() -> Result<PathBuf, String> {
    // Whoever runs this was given the variables of stable's cargo.
    let folder = std::path::absolute(FUZZ).map_err(|e| e.to_string())?.join("target");
    let status = Command::new("cargo")
        .args(["+nightly", "fuzz", "build", "--target-dir"])
        .arg(&folder)
        .env_remove("CARGO")
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO_TARGET_DIR")
        .stdout(Stdio::inherit())
        .status()
        .map_err(|e| format!("cargo: {e}"))?;
    if !status.success() {
        return Err(
            "the fuzzer's targets do not build; they need `rustup toolchain install nightly` and \
                    `cargo install cargo-fuzz`, or leave out --fuzz"
                .to_owned(),
        );
    }
    let host = host()?;
    Ok(folder.join(host).join("release"))
}

/// The triple that this machine's programs are built for.
fn host() -> Result<String, String> {
    let output =
        Command::new("rustc").arg("-vV").output().map_err(|e| format!("rustc: {e}"))?.stdout;
    let text = String::from_utf8_lossy(&output).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc does not say what it builds for".to_owned())
}
