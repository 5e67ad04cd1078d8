//! The errors of a conversion. Before the last step of a conversion, an error costs nothing: the
//! device still has its old file system.

/// The reason why a conversion or a rollback failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device has no ext2, ext3 or ext4.
    #[error("it has no ext2, ext3 or ext4")]
    NotExt,
    /// The file system has a feature that cannot be converted.
    #[error("its feature {0} cannot be converted")]
    Feature(String),
    /// The file system was not unmounted, has errors, or contradicts itself.
    #[error("it is not clean: {0}; run e2fsck -f first")]
    NotClean(String),
    /// There is a superblock of btrfs, as after a conversion that was killed in its last step.
    #[error("it holds btrfs, too: mount that, or make ext4 of it with --rollback")]
    Already,
    /// There is too little free space.
    #[error("too little free space: {0}")]
    NoRoom(String),
    /// The volume was not converted, or its content is no longer where it was.
    #[error("it cannot be rolled back: {0}")]
    NoWayBack(String),
    /// The new volume did not pass its check. This is a fault of the program.
    #[error("the new volume is damaged, so it was not put in place: {0}")]
    Damaged(String),
    /// The name of the subvolume for the image is taken.
    #[error("its top directory has the name ext2_saved, which is needed")]
    Taken,
    /// The device failed.
    #[error("the device failed")]
    Device(#[from] buttress_block::Error),
    /// The new volume could not be made.
    #[error("making the volume")]
    Make(#[from] buttress_fs::make::MakeError),
    /// The new volume could not be written.
    #[error("writing the volume")]
    Volume(#[from] buttress_fs::Error),
}

/// The result of a step of a conversion.
pub type Result<T, E = Error> = std::result::Result<T, E>;
