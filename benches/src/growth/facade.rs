//! Steps of cases on calls of the crate `buttress`: by path, by open file, in a snapshot, and in a
//! transaction.

use buttress::VerityOptions;
use buttress_fs::SetAttr;

use super::Done;
use super::bed::{Bed, SECTOR, name};

fn path(folder: &str, at: u64) -> Result<String, Box<dyn std::error::Error>> {
    Ok(format!("{folder}/{}", String::from_utf8(name(at))?))
}

/// Makes the calls that take a path, for each file of `src`.
pub(super) fn by_path(bed: &Bed, size: u64) -> Done {
    let fs = bed.fs();
    for at in 0..size {
        let (file, link) = (path("/src", at)?, path("/src/link", at)?);
        let (symlink, moved) = (path("/src/symlink", at)?, path("/src/moved", at)?);
        if at == 0 {
            ["/src/link", "/src/symlink", "/src/moved"]
                .iter()
                .try_for_each(|dir| fs.create_dir(dir))?;
        }
        if !fs.exists(&file)? || fs.metadata(&file)?.len() != SECTOR {
            return Err("a file is missing".into());
        }
        fs.set_attributes(&file, &SetAttr { mode: Some(0o600), ..SetAttr::default() })?;
        fs.set_xattr(&file, "user.at", at.to_le_bytes())?;
        fs.xattr(&file, "user.at")?;
        fs.hard_link(&file, &link)?;
        fs.symlink("/there", &symlink)?;
        fs.symlink_metadata(&symlink)?;
        fs.read_link(&symlink)?;
        fs.rename(&file, &moved)?;
        fs.remove_file(&link)?;
        fs.create_dir(&file)?;
        fs.remove_dir(&file)?;
    }
    Ok(())
}

/// Makes the calls of an open file, for each file of `src`.
pub(super) fn by_file(bed: &Bed, size: u64) -> Done {
    let mut buf = [0; SECTOR as usize];
    for at in 0..size {
        let file = bed.fs().open_file(path("/src", at)?)?;
        file.read_exact_at(&mut buf, 0)?;
        let new = bed.fs().create_file(path("", at)?)?;
        new.write_all_at(&buf, 0)?;
        new.set_len(SECTOR / 2)?;
        let read = new.read_at(&mut buf, 0)?;
        if new.metadata().len() != read as u64 {
            return Err("a file is cut wrongly".into());
        }
        new.sync_all()?;
    }
    Ok(())
}

/// Makes the calls of a snapshot, for each file of `src`.
pub(super) fn in_snapshot(bed: &Bed, size: u64) -> Done {
    bed.fs().symlink("/src", "/src/link")?;
    let snapshot = bed.fs().snapshot()?;
    let mut buf = [0; SECTOR as usize];
    for at in 0..size {
        let file = path("/src", at)?;
        if !snapshot.exists(&file)? || snapshot.metadata(&file)?.len() != SECTOR {
            return Err("a file is missing".into());
        }
        snapshot.symlink_metadata(&file)?;
        snapshot.read_link("/src/link")?;
        snapshot.open_file(&file)?.read_exact_at(&mut buf, 0)?;
    }
    Ok(())
}

/// Makes the calls of a transaction, for each file of `src`.
pub(super) fn in_transaction(bed: &Bed, size: u64) -> Done {
    let names: Result<Vec<_>, _> = (0..size).map(|at| path("/src", at)).collect();
    let names = names?;
    Ok(bed.fs().transaction(|tx| {
        names.iter().enumerate().try_for_each(|(at, file)| {
            tx.read(file)?;
            tx.rename(file, format!("/moved-{at:08}"))?;
            tx.create_dir(format!("/dir-{at:08}"))?;
            tx.remove_file(format!("/moved-{at:08}"))
        })
    })?)
}

/// Makes a file of `size` sectors without holes.
pub(super) fn long_file(bed: &Bed, size: u64) -> Done {
    let file = bed.make("long")?;
    (0..size).try_for_each(|at| {
        let bytes = [at as u8; SECTOR as usize];
        Ok(file.write_at(at * SECTOR, &bytes).map(drop)?)
    })
}

/// Makes the Merkle tree of a file, and reads the file.
pub(super) fn enable_verity(bed: &Bed, size: u64) -> Done {
    let made = bed.fs().enable_verity("/long", &VerityOptions::default())?;
    let found = bed.fs().verity("/long")?;
    let len = bed.fs().read("/long")?.len() as u64;
    if found.is_some_and(|found| found.digest() == made.digest()) && len == size * SECTOR {
        Ok(())
    } else {
        Err("the tree is missing".into())
    }
}
