//! A store of documents that keeps every version: each save is a snapshot.
//!
//! ```sh
//! cargo run -p buttress --example history -- notes.img save todo "buy milk"
//! cargo run -p buttress --example history -- notes.img save todo "buy milk and bread"
//! cargo run -p buttress --example history -- notes.img log
//! cargo run -p buttress --example history -- notes.img show todo 1
//! ```

use std::error::Error;
use std::path::Path;

use buttress::{CreateOptions, Filesystem};

/// Documents by name, with all their versions.
struct Store {
    fs: Filesystem,
}

impl Store {
    fn open(image: &Path) -> Result<Self, Box<dyn Error>> {
        if image.exists() {
            return Ok(Self { fs: Filesystem::open(image)? });
        }
        let fs = CreateOptions::new(1 << 30).label("documents").create(image)?;
        fs.create_subvolume("/now")?;
        fs.create_dir("/versions")?;
        Ok(Self { fs })
    }

    /// Numbers of all versions, oldest first.
    fn versions(&self) -> Result<Vec<u32>, Box<dyn Error>> {
        let mut numbers = Vec::new();
        for entry in self.fs.read_dir("/versions")? {
            numbers.push(entry?.file_name().to_string_lossy().parse()?);
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Writes a document and keeps the state as a new version, which shares unchanged data with
    /// earlier versions.
    fn save(&self, name: &str, text: &str) -> Result<u32, Box<dyn Error>> {
        self.fs.write(format!("/now/{name}"), text)?;
        let version = self.versions()?.last().map_or(1, |last| last + 1);
        self.fs.create_snapshot("/now", format!("/versions/{version}"), true)?;
        Ok(version)
    }

    fn show(&self, name: &str, version: u32) -> Result<String, Box<dyn Error>> {
        Ok(self.fs.read_to_string(format!("/versions/{version}/{name}"))?)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [image, command @ ..] = words.as_slice() else {
        return Err("usage: history IMAGE save NAME TEXT | log | show NAME VERSION".into());
    };
    let store = Store::open(Path::new(image))?;
    match command {
        ["save", name, text] => println!("version {}", store.save(name, text)?),
        ["log"] => {
            for version in store.versions()? {
                println!("{version}");
            }
        }
        ["show", name, version] => println!("{}", store.show(name, version.parse()?)?),
        _ => return Err("save NAME TEXT, log, or show NAME VERSION".into()),
    }
    store.fs.close()?;
    Ok(())
}
