//! Damages one byte of a volume and shows that the damaged byte is never returned as data.
//!
//! ```sh
//! cargo run -p buttress --example checksums
//! ```

use std::sync::Arc;

use buttress::{CreateOptions, Device, ErrorKind, MemoryDevice, OpenOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(128 << 20));
    let fs = CreateOptions::new(128 << 20).create_on(Arc::clone(&device))?;
    let content = vec![0xA5; 1 << 20];
    fs.write("/data", &content)?;
    fs.close()?;

    // Look for the content on the device and flip one byte of it.
    let mut block = vec![0; 4096];
    let mut at = 0;
    while at < device.len() {
        device.read_at(at, &mut block)?;
        if block.iter().all(|&byte| byte == 0xA5) {
            block[100] ^= 1;
            device.write_at(at, &block)?;
            break;
        }
        at += 4096;
    }

    let fs = OpenOptions::new().read_only(true).open_devices(vec![device])?;
    match fs.read("/data") {
        Err(error) if error.kind() == ErrorKind::Io => println!("found: {error}"),
        Err(error) => return Err(error.into()),
        Ok(_) => return Err("wrong bytes were returned".into()),
    }
    Ok(())
}
