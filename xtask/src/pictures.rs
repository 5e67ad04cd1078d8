//! `cargo xtask pictures`: draws the pictures of the documents, each with the program that the
//! picture shows.
//!
//! The pictures show a real mount beside a program that writes, so no two runs draw the same. Look
//! at them before they are committed. The pictures of the book, of the map's page and of the page
//! of figures need mdbook and Chromium.

mod terminal;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;

/// The program to draw with, and the folder for the pictures.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The program. By default it is built as a release.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// The program that builds the book.
    #[arg(long, value_name = "FILE", default_value = "mdbook")]
    mdbook: PathBuf,
    /// The folder to write to.
    #[arg(long, value_name = "DIR", default_value = "docs/pictures")]
    to: PathBuf,
}

type Result<T> = std::result::Result<T, String>;

pub(crate) fn run(options: &Options) -> ExitCode {
    match draw(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// A folder for an image and its mount. At the end the mount and the folder are removed.
struct Scene {
    folder: PathBuf,
    program: PathBuf,
}

impl Drop for Scene {
    fn drop(&mut self) {
        let mount = self.folder.join("home");
        // The unmount fails if the mount is gone already. The failure needs no action.
        let _ = Command::new(&self.program).arg("umount").arg(&mount).output();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn draw(options: &Options) -> Result<()> {
    let program = match &options.program {
        Some(program) => std::fs::canonicalize(program).map_err(|error| error.to_string())?,
        None => {
            run_it(Command::new("cargo").args([
                "build",
                "--release",
                "--package",
                "buttress-cli",
            ]))?;
            std::fs::canonicalize("target/release/buttress").map_err(|error| error.to_string())?
        }
    };
    let made = |error: std::io::Error| format!("{}: {error}", options.to.display());
    std::fs::create_dir_all(&options.to).map_err(made)?;
    let to = std::fs::canonicalize(&options.to).map_err(made)?;
    let folder = PathBuf::from(format!("/tmp/buttress-{}", std::process::id()));
    let scene = Scene { folder, program };
    let (image, mount) = (scene.folder.join("disk.img"), scene.folder.join("home"));
    std::fs::create_dir_all(&mount).map_err(made)?;
    let ask = |args: &[&str], place: &[&Path]| {
        run_it(Command::new(&scene.program).args(args).args(place))
    };
    ask(&["mkfs", "--size", "2G"], &[&image])?;
    ask(&["mount", "-o", "compress=zstd"], &[&image, &mount])?;
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..3 {
            let (mount, is_done) = (&mount, &is_done);
            scope.spawn(move || work(mount, number, is_done));
        }
        let drawn = ask(
            &["top", "--delay", "0.25", "-n", "48", "--columns", "132", "--lines", "40", "-o"],
            &[&to.join("top.svg"), &mount],
        );
        is_done.store(true, Ordering::Relaxed);
        drawn
    })?;
    ask(&["umount"], &[&mount])?;
    ask(&["map", "-o"], &[&to.join("map.svg"), &image])?;
    let page = scene.folder.join("map.html");
    ask(&["map", "-o"], &[&page, &image])?;
    is_drawn(&page)?;
    screenshot(&page, &to.join("map.png"))?;
    let figures = scene.folder.join("figures.html");
    std::fs::write(&figures, crate::figures::draw(&crate::top::top(), &[])?).map_err(made)?;
    is_drawn(&figures)?;
    screenshot(&figures, &to.join("figures.png"))?;
    demo(&scene, &to.join("demo.svg"))?;
    book(&options.mdbook, &scene.folder, &to.join("book.png"))?;
    println!(
        "{}: top.svg, map.svg, map.png, figures.png, demo.svg, book.png",
        options.to.display()
    );
    Ok(())
}

/// Draws the demo. The demo gets a terminal, because it prints colours only on a terminal.
fn demo(scene: &Scene, to: &Path) -> Result<()> {
    let folder = scene.folder.join("bin");
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    // The demo prints the name by which the program was called, so this name must be `buttress`.
    std::os::unix::fs::symlink(&scene.program, folder.join("buttress"))
        .map_err(|error| error.to_string())?;
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", "buttress demo 2>/dev/null", "/dev/null"]);
    let path = std::env::var("PATH").unwrap_or_default();
    script.env("PATH", format!("{}:{path}", folder.display()));
    let output = script.output().map_err(|error| format!("script: {error}"))?;
    if !output.status.success() {
        return Err(format!("the demo: {}", String::from_utf8_lossy(&output.stdout)));
    }
    let drawn = terminal::svg("buttress demo", &String::from_utf8_lossy(&output.stdout));
    std::fs::write(to, drawn).map_err(|error| format!("{}: {error}", to.display()))
}

/// Draws the front page of the book, by a browser.
fn book(mdbook: &Path, folder: &Path, to: &Path) -> Result<()> {
    let book = folder.join("book");
    run_it(Command::new(mdbook).args(["build", "docs", "--dest-dir"]).arg(&book))?;
    screenshot(&book.join("index.html"), to)
}

/// A browser without a window, for a page of a file.
fn browser() -> Command {
    let mut browser = Command::new("chromium");
    browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
    // Scripts of the page have this many milliseconds of the browser's clock.
    browser.args(["--window-size=1280,860", "--virtual-time-budget=3000"]);
    browser
}

/// Draws a page as a PNG.
fn screenshot(page: &Path, to: &Path) -> Result<()> {
    let mut browser = browser();
    browser.arg(format!("--screenshot={}", to.display()));
    run_it(browser.arg(format!("file://{}", page.display())))
}

/// Fails if the script of a page did not run to its end. At its end, the script puts a mark
/// into the page.
fn is_drawn(page: &Path) -> Result<()> {
    let mut browser = browser();
    let output = browser.arg("--dump-dom").arg(format!("file://{}", page.display())).output();
    let output = output.map_err(|error| format!("chromium: {error}"))?;
    let drawn = String::from_utf8_lossy(&output.stdout);
    if drawn.contains("data-drawn=\"") {
        Ok(())
    } else {
        Err(format!("{}: the browser drew nothing", page.display()))
    }
}

/// Writes, reads and removes files of many sizes until it is told to stop.
fn work(mount: &Path, number: u64, is_done: &AtomicBool) {
    let folder = mount.join(format!("user-{number}"));
    let mut round: u64 = 0;
    while !is_done.load(Ordering::Relaxed) {
        round += 1;
        // A changing load makes a better picture than a constant load.
        let busy = 1 + (round / 40 + number) % 4;
        let path = folder.join(format!("{}/file-{}", round % 16, round % 400));
        let bytes: Vec<u8> = (0..(round % 7 + 1) * 24_000 * busy)
            .map(|at| (at.wrapping_mul(round) >> 7) as u8)
            .collect();
        let done = std::fs::create_dir_all(path.parent().unwrap_or(&folder))
            .and_then(|()| std::fs::write(&path, &bytes))
            .and_then(|()| std::fs::read(&path))
            .and_then(|_| std::fs::File::open(&path))
            .and_then(|file| if round.is_multiple_of(25) { file.sync_all() } else { Ok(()) });
        if let Err(error) = done {
            eprintln!("{}: {error}", path.display());
            return;
        }
        if round.is_multiple_of(3) {
            // The file may be gone already.
            let _ = std::fs::remove_file(folder.join(format!("{}/file-{}", round % 16, round / 3)));
        }
        std::thread::sleep(Duration::from_millis(12 / busy));
    }
}

fn run_it(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}
