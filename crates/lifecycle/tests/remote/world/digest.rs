//! Digests of 128 bits of what may matter later in a world, under a naming of its nodes and slots: what differs in
//! names alone has the same digest under some naming. What is only told to people is left out, and so are times; those
//! that matter are in `fingerprint.rs`, counted from now.

use std::fmt;

use serde::{
    Serialize,
    ser::{
        Impossible, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
        SerializeTupleStruct, Serializer,
    },
};

/// So many namings there are: each of two orders of the first two slots with each of two orders of the first two nodes.
pub(super) const NAMINGS: usize = 4;

/// A naming: which of the first two slots, and of the first two nodes, change places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    pub(super) slots_swapped: bool,
    pub(super) nodes_swapped: bool,
}

impl Names {
    pub(super) fn number(self) -> usize {
        usize::from(self.slots_swapped) * 2 + usize::from(self.nodes_swapped)
    }

    pub(super) fn slot(self, slot: u32) -> u32 {
        if self.slots_swapped && slot < 2 { 1 - slot } else { slot }
    }

    pub(super) fn node(self, n: usize) -> usize {
        if self.nodes_swapped && n < 2 { 1 - n } else { n }
    }

    /// Ids hold the number of their node or slot: see `world::ids`.
    fn id(self, id: u128) -> u128 {
        match id >> 28 {
            super::NODES => id & !0xffff | self.node((id & 0xffff) as usize) as u128,
            super::ALLOCS | super::INCARNATIONS => {
                let slot = self.slot((id >> 16 & 0xfff) as u32);
                id & !0x0fff_0000 | u128::from(slot) << 16
            }
            _ => id,
        }
    }
}

/// Something that has a digest.
pub(crate) trait Digest {
    fn digest(&self, names: &Names) -> u128;
}

impl<T: Serialize> Digest for T {
    fn digest(&self, names: &Names) -> u128 {
        let mut sink = Sink::new(*names);
        sink.put(self);
        sink.finish()
    }
}

/// Mixes words into 128 bits.
pub(super) struct Sink {
    names: Names,
    state: (u64, u64),
    /// Of the number that comes next.
    next: Meaning,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Exact,
    Slot,
    /// Whether it is there is what matters.
    Presence,
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

impl Sink {
    pub(super) fn new(names: Names) -> Self {
        Self { names, state: (0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344), next: Meaning::Exact }
    }

    pub(super) fn word(&mut self, w: u64) {
        self.state.0 = fold(self.state.0 ^ w, 0x9e37_79b9_7f4a_7c15).rotate_left(7);
        self.state.1 = fold(self.state.1 ^ w.rotate_left(32), 0xc2b2_ae3d_27d4_eb4f).wrapping_add(w);
    }

    pub(super) fn put(&mut self, value: &(impl Serialize + ?Sized)) {
        value.serialize(self).expect("a digest takes everything");
    }

    pub(super) fn digest(&mut self, of: u128) {
        self.word(of as u64);
        self.word((of >> 64) as u64);
    }

    /// Several things in no order.
    pub(super) fn set(&mut self, digests: impl Iterator<Item = u128>) {
        let (mut sum, mut n) = (0u128, 0u64);
        for digest in digests {
            sum = sum.wrapping_add(digest);
            n += 1;
        }
        self.word(n);
        self.digest(sum);
    }

    /// Several serialisable things in no order.
    pub(super) fn values<T: Serialize>(&mut self, values: impl Iterator<Item = T>) {
        let names = self.names;
        self.set(values.map(|value| value.digest(&names)));
    }

    pub(super) fn finish(mut self) -> u128 {
        let (a, b) = self.state;
        self.word(a ^ b);
        self.word(b);
        u128::from(self.state.0) << 64 | u128::from(self.state.1)
    }

    fn field(&mut self, name: &'static str, value: &(impl Serialize + ?Sized)) -> Result<(), fmt::Error> {
        self.next = match name {
            // For people, or times: see `fingerprint.rs` for those that matter.
            "History" | "Handovers" | "RestartCharges" | "CreateIndex" | "ModifyIndex" | "At" | "Since" | "since"
            | "RestartWindowStart" | "Namespace" | "JobID" | "Group" | "Task" => return Ok(()),
            "UnmanagedSince" | "StartedAt" | "started_at" => Meaning::Presence,
            "Index" => Meaning::Slot,
            _ => Meaning::Exact,
        };
        value.serialize(&mut *self)?;
        self.next = Meaning::Exact;
        Ok(())
    }
}

/// The number that a text of hexadecimal digits and hyphens stands for, when it is an id or a handle of this model.
fn id_in(text: &str) -> Option<u128> {
    const NOUGHT: [&str; 2] = ["00000000-0000-0000-0000-", "00000000000000000000"];
    let digits = NOUGHT.iter().find_map(|nought| text.strip_prefix(nought)).filter(|digits| digits.len() == 12)?;
    digits.bytes().try_fold(0u128, |id, digit| Some(id << 4 | u128::from(char::from(digit).to_digit(16)?)))
}

type Done = Result<(), fmt::Error>;

impl Serializer for &mut Sink {
    type Ok = ();
    type Error = fmt::Error;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Impossible<(), fmt::Error>;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    fn serialize_bool(self, v: bool) -> Done {
        self.word(u64::from(v));
        Ok(())
    }
    fn serialize_i8(self, v: i8) -> Done {
        self.serialize_i64(v.into())
    }
    fn serialize_i16(self, v: i16) -> Done {
        self.serialize_i64(v.into())
    }
    fn serialize_i32(self, v: i32) -> Done {
        self.serialize_i64(v.into())
    }
    fn serialize_i64(self, v: i64) -> Done {
        let presence = self.next == Meaning::Presence;
        self.word(if presence { u64::from(v != 0) } else { v as u64 });
        Ok(())
    }
    fn serialize_u8(self, v: u8) -> Done {
        self.serialize_u64(v.into())
    }
    fn serialize_u16(self, v: u16) -> Done {
        self.serialize_u64(v.into())
    }
    fn serialize_u32(self, v: u32) -> Done {
        let v = if self.next == Meaning::Slot { self.names.slot(v) } else { v };
        self.serialize_u64(v.into())
    }
    fn serialize_u64(self, v: u64) -> Done {
        self.word(v);
        Ok(())
    }
    fn serialize_f32(self, v: f32) -> Done {
        self.serialize_f64(v.into())
    }
    fn serialize_f64(self, v: f64) -> Done {
        self.serialize_u64(v.to_bits())
    }
    fn serialize_char(self, v: char) -> Done {
        self.serialize_u32(v.into())
    }
    fn serialize_str(self, v: &str) -> Done {
        if let Some(id) = id_in(v) {
            let id = self.names.id(id);
            self.digest(id);
            return Ok(());
        }
        self.serialize_bytes(v.as_bytes())
    }
    fn serialize_bytes(self, v: &[u8]) -> Done {
        self.word(v.len() as u64);
        for chunk in v.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
        Ok(())
    }
    fn serialize_none(self) -> Done {
        self.word(0);
        Ok(())
    }
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Done {
        self.word(1);
        value.serialize(self)
    }
    fn serialize_unit(self) -> Done {
        Ok(())
    }
    fn serialize_unit_struct(self, _name: &'static str) -> Done {
        Ok(())
    }
    fn serialize_unit_variant(self, _name: &'static str, index: u32, _variant: &'static str) -> Done {
        self.word(index.into());
        Ok(())
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _name: &'static str, value: &T) -> Done {
        value.serialize(self)
    }
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        value: &T,
    ) -> Done {
        self.word(index.into());
        value.serialize(self)
    }
    fn serialize_seq(self, len: Option<usize>) -> Result<Self, fmt::Error> {
        self.word(len.unwrap_or(usize::MAX) as u64);
        Ok(self)
    }
    fn serialize_tuple(self, _len: usize) -> Result<Self, fmt::Error> {
        Ok(self)
    }
    fn serialize_tuple_struct(self, _name: &'static str, _len: usize) -> Result<Self, fmt::Error> {
        Ok(self)
    }
    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        _index: u32,
        _variant: &'static str,
        _len: usize,
    ) -> Result<Self::SerializeTupleVariant, fmt::Error> {
        Err(fmt::Error)
    }
    fn serialize_map(self, len: Option<usize>) -> Result<Self, fmt::Error> {
        self.serialize_seq(len)
    }
    fn serialize_struct(self, _name: &'static str, len: usize) -> Result<Self, fmt::Error> {
        // Fields that are left out when they are empty change it.
        self.word(len as u64);
        Ok(self)
    }
    fn serialize_struct_variant(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        _len: usize,
    ) -> Result<Self, fmt::Error> {
        self.word(index.into());
        Ok(self)
    }
    fn is_human_readable(&self) -> bool {
        false
    }
}

macro_rules! elements {
    ($($kind:ident::$element:ident),*) => {$(
        impl $kind for &mut Sink {
            type Ok = ();
            type Error = fmt::Error;
            fn $element<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
                value.serialize(&mut **self)
            }
            fn end(self) -> Done {
                Ok(())
            }
        }
    )*};
}
elements!(SerializeSeq::serialize_element, SerializeTuple::serialize_element, SerializeTupleStruct::serialize_field);

macro_rules! fields {
    ($($kind:ident),*) => {$(
        impl $kind for &mut Sink {
            type Ok = ();
            type Error = fmt::Error;
            fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Done {
                self.field(name, value)
            }
            fn end(self) -> Done {
                Ok(())
            }
        }
    )*};
}
fields!(SerializeStruct, SerializeStructVariant);

impl SerializeMap for &mut Sink {
    type Ok = ();
    type Error = fmt::Error;
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Done {
        key.serialize(&mut **self)
    }
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
        value.serialize(&mut **self)
    }
    fn end(self) -> Done {
        Ok(())
    }
}
