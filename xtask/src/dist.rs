//! `cargo xtask dist`: makes all files of a release, in `target/dist`, from a clean clone.
//!
//! One static program for each machine goes into all packages, so that they install on any
//! distribution. `--try` installs each package into a new Debian, uses it, removes it, and fails if
//! any file is left. The notes of the release are the changelog's section of its version.

mod inventory;
mod stage;
mod tool;
mod trial;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Args, ValueEnum};

use self::tool::{Result, run_command};

/// The parts to make.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Make only this part. The default is everything.
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Try what was made: the packages and the archive in a new Debian, the image of a container,
    /// and the completions. Needs root, debootstrap and buildah.
    #[arg(long)]
    r#try: bool,
    /// Pack this program for x86-64 instead of building one, to try the packages alone.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// A part of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The static program for x86-64, in an archive with its pages.
    Static,
    /// The static program for aarch64, in an archive with its pages.
    Aarch64,
    /// The Debian package.
    Deb,
    /// The RPM package.
    Rpm,
}

/// A machine that the program is built for.
#[derive(Clone, Copy, Debug)]
struct Machine {
    /// The name of the target in Rust.
    target: &'static str,
    /// The name of the machine in file names of releases.
    name: &'static str,
    /// The compiler of C, for zstd, mimalloc and ring.
    compiler: &'static str,
    /// The compiler that calls the linker; Rust brings musl itself.
    linker: &'static str,
    /// The emulator that runs a program of another machine here.
    emulator: Option<&'static str>,
}

const X86_64: Machine = Machine {
    target: "x86_64-unknown-linux-musl",
    name: "x86_64",
    compiler: "musl-gcc",
    linker: "gcc",
    emulator: None,
};
// The headers of glibc are good enough: code that is compiled with them uses only functions that
// musl has.
const AARCH64: Machine = Machine {
    target: "aarch64-unknown-linux-musl",
    name: "aarch64",
    compiler: "aarch64-linux-gnu-gcc",
    linker: "aarch64-linux-gnu-gcc",
    emulator: Some("qemu-aarch64-static"),
};

/// A program may have at most this many bytes.
const PROGRAM_MAX: u64 = 20_000_000;

pub(crate) fn run(options: &Options) -> ExitCode {
    match make(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn make(options: &Options) -> Result<()> {
    let wants = |part| options.only.is_empty() || options.only.contains(&part);
    let dist = PathBuf::from("target/dist");
    std::fs::create_dir_all(&dist).map_err(|error| format!("{}: {error}", dist.display()))?;
    let version = env!("CARGO_PKG_VERSION");
    let mut made = Vec::new();
    if wants(Part::Static) || wants(Part::Deb) || wants(Part::Rpm) {
        let packed = match &options.program {
            Some(program) => program.clone(),
            None => program(X86_64)?,
        };
        let tree = dist.join("tree");
        stage::tree(&tree, &packed)?;
        if wants(Part::Static) {
            made.push(stage::archive(&dist, &tree, &format!("buttress-{version}-x86_64"))?);
        }
        if wants(Part::Deb) {
            made.push(stage::deb(&dist, &tree, version)?);
        }
        if wants(Part::Rpm) {
            made.push(stage::rpm(&dist, &tree, version)?);
        }
    }
    if wants(Part::Aarch64) {
        let program = program(AARCH64)?;
        let tree = dist.join("tree-aarch64");
        stage::tree_of(&tree, &program, &dist.join("tree"))?;
        made.push(stage::archive(&dist, &tree, &format!("buttress-{version}-aarch64"))?);
    }
    let bom = dist.join(format!("buttress-{version}.cdx.json"));
    inventory::bom(&bom)?;
    made.push(bom);
    let notes = dist.join(format!("buttress-{version}.md"));
    std::fs::write(&notes, stage::notes(version)?).map_err(|error| error.to_string())?;
    made.push(notes);
    sums(&dist, &made)?;
    for file in &made {
        let len = std::fs::metadata(file).map_or(0, |metadata| metadata.len());
        println!("{:>8.1} MiB  {}", len as f64 / f64::from(1 << 20), file.display());
    }
    if options.r#try { try_all(&dist, version, &wants) } else { Ok(()) }
}

/// Tries the parts that were made.
fn try_all(dist: &Path, version: &str, wants: &dyn Fn(Part) -> bool) -> Result<()> {
    let tree = dist.join("tree");
    trial::completions(&tree)?;
    trial::container(&tree)?;
    let file = |end: &str| dist.join(format!("buttress-{version}{end}"));
    if wants(Part::Static) {
        trial::archive(&file("-x86_64.tar.gz"), &tree)?;
    }
    if wants(Part::Aarch64)
        && let Some(emulator) = AARCH64.emulator
    {
        trial::emulated(&file("-aarch64.tar.gz"), emulator)?;
    }
    if wants(Part::Rpm) {
        trial::rpm(&file("-1.x86_64.rpm"))?;
    }
    if wants(Part::Deb) {
        trial::debian(&dist.join(stage::deb_name(version)))?;
    }
    Ok(())
}

/// Builds the static program for a machine. Tests that the program can make and check a volume.
fn program(machine: Machine) -> Result<PathBuf> {
    // If this machine has the target already, rustup does nothing.
    run_command(Command::new("rustup").args(["target", "add", machine.target]))?;
    let mut build = Command::new("cargo");
    build.args(["rustc", "--profile", "dist", "--package", "buttress-cli", "--locked"]);
    build.args(["--bin", "buttress", "--target", machine.target, "--"]);
    // Use the linker that comes with Rust, because GNU's linker does not join equal functions.
    build.arg(format!("-Clink-arg=-B{}", linker_folder()?.display()));
    // The profile has the same setting, but cargo drops the setting for a package with its own
    // `opt-level`.
    build.args(["-Clink-arg=-fuse-ld=lld", LINKER_FLAGS, "-Cstrip=symbols"]);
    let variable = machine.target.replace('-', "_");
    let linker = format!("CARGO_TARGET_{}_LINKER", variable.to_uppercase());
    build.env(linker, machine.linker).env(format!("CC_{variable}"), machine.compiler);
    run_command(&mut build)?;
    let program = PathBuf::from("target").join(machine.target).join("dist/buttress");
    let len = std::fs::metadata(&program).map_err(|error| error.to_string())?.len();
    if len > PROGRAM_MAX {
        return Err(format!("{} has {len} bytes, more than {PROGRAM_MAX}", program.display()));
    }
    let image = Path::new("target/dist").join(format!("try-{}.img", machine.name));
    let image = image.display().to_string();
    let calls: [&[&str]; 4] = [
        &["--version"],
        &["mkfs", "--force", &image, "--size", "256M", "--label", "try", "--rootdir", "packaging"],
        &["check", "--check-data-csum", &image],
        &["ls", &format!("{image}:/")],
    ];
    for call in calls {
        let mut command = match machine.emulator {
            Some(emulator) => Command::new(emulator),
            None => Command::new(&program),
        };
        if machine.emulator.is_some() {
            command.arg(&program);
        }
        run_command(command.args(call))?;
    }
    std::fs::remove_file(&image).map_err(|error| format!("{image}: {error}"))?;
    println!("{}: {len} bytes, static, {}", program.display(), machine.name);
    Ok(program)
}

/// Joins equal functions, and packs the relocations of a position-independent program.
const LINKER_FLAGS: &str = "-Clink-arg=-Wl,--icf=all,-z,pack-relative-relocs,-O2";

/// The folder in which the compiler of C finds the linker of Rust by the name `ld.lld`.
fn linker_folder() -> Result<PathBuf> {
    let output = Command::new("rustc").args(["--print", "target-libdir"]).output();
    let output = output.map_err(|error| format!("rustc: {error}"))?;
    let libraries = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let folder = libraries.with_file_name("bin").join("gcc-ld");
    if folder.join("ld.lld").exists() {
        Ok(folder)
    } else {
        Err(format!("{} has no ld.lld; see `rustup component`", folder.display()))
    }
}

fn sums(dist: &Path, made: &[PathBuf]) -> Result<()> {
    let names = made.iter().filter_map(|file| file.file_name());
    let output = Command::new("sha256sum").args(names).current_dir(dist).output();
    let output = output.map_err(|error| format!("sha256sum: {error}"))?;
    std::fs::write(dist.join("SHA256SUMS"), output.stdout).map_err(|error| error.to_string())
}
