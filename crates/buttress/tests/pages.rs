//! The Rust of the pages, compiled and run: each block stands in this file, line by line.

use std::path::Path;

use buttress::Result;

/// The pages with Rust. The paths begin at the crate.
const PAGES: [&str; 3] = ["../../README.md", "../../docs/guide/library.md", "README.md"];

/// The first example of the guide.
fn first() -> Result<()> {
    let fs = buttress::CreateOptions::new(1 << 30).label("notes").create("notes.img")?;
    fs.create_subvolume("/plans")?;
    fs.write("/plans/todo", "buy milk")?;
    fs.create_snapshot("/plans", "/monday", true)?;
    fs.close()?;

    let fs = buttress::OpenOptions::new().memory(32 << 20).open("notes.img")?;
    for entry in fs.read_dir("/plans")? {
        println!("{}", entry?.path().display());
    }
    assert_eq!(fs.read_to_string("/monday/todo")?, "buy milk");
    fs.close()
}

/// The example of the project's README.
fn of_the_project() -> Result<()> {
    let fs = buttress::CreateOptions::new(1 << 30).create("notes.img")?;
    fs.create_subvolume("/plans")?;
    fs.write("/plans/todo", "buy milk")?;
    fs.create_snapshot("/plans", "/monday", true)?;
    fs.close()?;
    Ok(())
}

/// The example of the crate's README.
fn of_the_crate() -> Result<()> {
    let fs = buttress::CreateOptions::new(1 << 30).label("notes").create("notes.img")?;
    fs.create_subvolume("/plans")?;
    fs.write("/plans/todo", "buy milk")?;
    fs.create_snapshot("/plans", "/monday", true)?;
    fs.transaction(|tx| {
        tx.write("/plans/todo", "sell milk")?;
        tx.write("/plans/done", "buy milk")
    })?;
    fs.close()?;
    let fs = buttress::OpenOptions::new().open("notes.img")?;
    assert_eq!(fs.read_to_string("/plans/todo")?, "sell milk");
    assert_eq!(fs.read_to_string("/monday/todo")?, "buy milk");
    fs.close()
}

/// Ten less than a number in text.
fn less(balance: &[u8]) -> String {
    let number: u32 = String::from_utf8_lossy(balance).parse().expect("a number");
    (number - 10).to_string()
}

/// The transaction and the read snapshot of the guide.
fn together() -> Result<()> {
    let fs = buttress::CreateOptions::new(1 << 30).create("notes.img")?;
    fs.write("/account-a", "30")?;
    fs.transaction(|tx| {
        let balance = tx.read("/account-a")?;
        tx.write("/account-a", less(&balance))?;
        tx.write("/account-b", "30")?;
        tx.create_dir("/receipts")?;
        tx.write("/receipts/1", "30 from a to b")
    })?;
    assert_eq!(fs.read_to_string("/account-a")?, "20");
    let moment = fs.snapshot()?;
    for entry in moment.read_dir("/receipts")? {
        println!("{}", moment.read_to_string(entry?.path())?);
    }
    drop(moment);
    fs.close()
}

/// The lines of the Rust blocks of a page.
fn blocks(page: &str) -> Vec<Vec<&str>> {
    let parts = page.split("```rust\n").skip(1);
    parts.map(|part| part.split("```").next().unwrap_or_default().lines().collect()).collect()
}

/// Each block of each page stands in this file, with one indentation for all of its lines.
#[test]
fn pages_say_what_is_compiled() {
    let here: Vec<&str> = include_str!("pages.rs").lines().collect();
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    for page in PAGES {
        let text = std::fs::read_to_string(top.join(page)).expect("the page");
        for block in blocks(&text) {
            let inner = |line: &str| line.strip_prefix("    ").unwrap_or(line).to_owned();
            let is_here = here
                .windows(block.len())
                .any(|at| at.iter().zip(&block).all(|(a, b)| inner(a) == **b));
            assert!(is_here, "{page}: no test has\n{}", block.join("\n"));
            count += 1;
        }
    }
    assert_eq!(count, 5);
}

#[test]
fn pages_work() {
    let folder = tempfile::tempdir().expect("a folder");
    std::env::set_current_dir(&folder).expect("it is there");
    for example in [first, of_the_project, of_the_crate, together] {
        example().expect("the page is right");
        std::fs::remove_file("notes.img").expect("the image");
    }
}
