//! Copies a folder of the host into a new volume.
//!
//! ```sh
//! cargo run -p buttress --example import -- src src.img
//! ```

use std::path::Path;

use buttress::{CreateOptions, Filesystem};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(from), Some(image)) = (arguments.next(), arguments.next()) else {
        return Err("usage: import FOLDER IMAGE".into());
    };
    let fs = CreateOptions::new(4 << 30).create(&image)?;
    import(&fs, Path::new(&from), Path::new("/"))?;
    fs.close()?;
    Ok(())
}

fn import(fs: &Filesystem, from: &Path, to: &Path) -> Result<(), Box<dyn std::error::Error>> {
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            fs.create_dir(&target)?;
            import(fs, &source, &target)?;
        } else if kind.is_symlink() {
            fs.symlink(std::fs::read_link(&source)?, &target)?;
        } else if kind.is_file() {
            // Source and target are streams, so a large file is never in memory as a whole.
            std::io::copy(&mut std::fs::File::open(&source)?, &mut fs.create_file(&target)?)?;
        }
    }
    Ok(())
}
