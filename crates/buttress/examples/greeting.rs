//! Makes a volume, writes a file, reads it back.
//!
//! ```sh
//! cargo run -p buttress --example greeting -- /tmp/greeting.img
//! ```

use buttress::{CreateOptions, Filesystem};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = std::env::args_os().nth(1).ok_or("usage: greeting IMAGE")?;
    let fs = CreateOptions::new(256 << 20).label("hello").create(&image)?;
    fs.write("/greeting", "hello, world\n")?;
    fs.close()?;

    let fs = Filesystem::open(&image)?;
    print!("{}", fs.read_to_string("/greeting")?);
    Ok(())
}
