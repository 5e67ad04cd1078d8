//! Shows what an operator asks of a volume: size, subvolumes, devices.
//!
//! ```sh
//! cargo run -p buttress --example usage -- disk.img
//! ```

use buttress::OpenOptions;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = std::env::args_os().nth(1).ok_or("usage: usage IMAGE")?;
    let fs = OpenOptions::new().read_only(true).open(&image)?;
    let admin = fs.admin();
    let usage = admin.usage()?;
    let block = u64::from(usage.block_size);
    println!("size      {} MiB", (usage.blocks * block) >> 20);
    println!("available {} MiB", (usage.blocks_available * block) >> 20);
    for subvolume in admin.subvolumes()? {
        println!("subvolume {}", String::from_utf8_lossy(&subvolume.path));
    }
    for device in admin.devices() {
        println!("device    {} {}", device.id, device.name);
    }
    Ok(())
}
