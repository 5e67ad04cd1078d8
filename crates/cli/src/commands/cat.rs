//! `buttress cat`: prints files.

use std::ffi::OsString;
use std::io::Write;

use buttress_fs::FileKind;

use crate::exit::{Context, Exit, Failure, Result};
use crate::image::{self, Devices};
use crate::reading;
use crate::ui::Ui;

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The files, as IMG:/path or as paths on a mount.
    #[arg(required = true, value_name = "IMG:/PATH | PATH")]
    places: Vec<OsString>,
    #[command(flatten)]
    devices: Devices,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let mut buffer = vec![0_u8; CHUNK];
    for place in &args.places {
        let (fs, place) = reading::open_place(place, &args.devices)?;
        let inode = image::resolve(&fs, &place)?;
        if inode.attr().kind != FileKind::Regular {
            let what = format!("{}: is no regular file", place.show());
            return Err(Failure::new(Exit::Failure, what));
        }
        let mut out = ui.writer();
        let mut offset = 0;
        loop {
            let len = inode.read_at(offset, &mut buffer).context(|| place.show())?;
            if len == 0 {
                break;
            }
            out.write_all(&buffer[..len]).context(|| "standard output")?;
            offset += len as u64;
        }
        out.flush().context(|| "standard output")?;
    }
    Ok(Exit::Success)
}
