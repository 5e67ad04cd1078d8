//! Lists a volume as a tree, without writing to it.
//!
//! ```sh
//! cargo run -p buttress --example tree -- disk.img
//! ```

use buttress::{FileKind, Filesystem, OpenOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = std::env::args_os().nth(1).ok_or("usage: tree IMAGE")?;
    let fs = OpenOptions::new().read_only(true).open(&image)?;
    show(&fs, "/", 0)?;
    Ok(())
}

fn show(fs: &Filesystem, path: &str, depth: usize) -> buttress::Result<()> {
    for entry in fs.read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy();
        let mark = if entry.kind() == FileKind::Directory { "/" } else { "" };
        println!("{:depth$}{name}{mark}", "");
        if entry.kind() == FileKind::Directory {
            show(fs, &format!("{path}/{name}"), depth + 2)?;
        }
    }
    Ok(())
}
