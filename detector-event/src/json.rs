//! JSON for event lines: byte for byte what serde_json writes, with a fraction of the instructions. An event executes most of its code
//! once, after a wait, when none of it is in the processor's caches.

use std::{fmt::Display, io::Write as _};

use detector_engine::ASCII;
use serde::ser::{self, Serialize};
use serde_json::Error;

/// Appends `value` as JSON to `out`.
///
/// # Errors
/// The value refuses to be serialised; `out` then ends with a part of it. Keys of maps have to be text or numbers, which is not checked.
pub fn write_json<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), Error> {
    value.serialize(Writer::<false>(out))
}

/// Writes one value; `IS_ASCII` within a newtype called [`ASCII`].
struct Writer<'o, const IS_ASCII: bool>(&'o mut Vec<u8>);

impl<const IS_ASCII: bool> Writer<'_, IS_ASCII> {
    /// Writes text that contains nothing to escape, such as a name in the source.
    fn quoted(self, text: &[u8]) {
        self.0.push(b'"');
        self.0.extend_from_slice(text);
        self.0.push(b'"');
    }
}

/// Writes the items of a list or an object.
struct Items<'o> {
    out: &'o mut Vec<u8>,
    /// Where `open` belongs: it replaces the comma before the first item, so that each is written in the same way.
    start: usize,
    open: u8,
    close: &'static str,
}

impl<'o> Items<'o> {
    fn open(out: &'o mut Vec<u8>, open: u8, close: &'static str) -> Self {
        Self {
            start: out.len(),
            out,
            open,
            close,
        }
    }

    /// The writer of the next item.
    fn next(&mut self) -> Writer<'_, false> {
        self.out.push(b',');
        Writer(self.out)
    }

    /// Writes a field of an object, whose name contains nothing to escape. Inlined, so that what comes before the value is part of the
    /// code and copied at once.
    #[inline(always)]
    fn field<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) -> Result<(), Error> {
        /// The longest name that is copied at once.
        const SHORT: usize = 28;
        let mut text = [0; SHORT + 4];
        if name.len() <= SHORT {
            let end = name.len() + 2;
            text[..2].copy_from_slice(b",\"");
            text[2..end].copy_from_slice(name.as_bytes());
            text[end..end + 2].copy_from_slice(b"\":");
            self.out.extend_from_slice(&text[..end + 2]);
        } else {
            self.out.extend_from_slice(b",\"");
            self.out.extend_from_slice(name.as_bytes());
            self.out.extend_from_slice(b"\":");
        }
        value.serialize(Writer::<false>(self.out))
    }

    fn close(self) {
        match self.out.get_mut(self.start) {
            Some(first) => *first = self.open,
            None => self.out.push(self.open),
        }
        self.out.extend_from_slice(self.close.as_bytes());
    }
}

/// Whether JSON needs an escape in this text: for a control character, a quotation mark or a backslash.
fn has_escape(text: &[u8]) -> bool {
    /// Without an exit, so that the compiler compares all bytes at once.
    #[inline(always)]
    fn in_chunk(chunk: &[u8]) -> bool {
        let is_escaped = |byte: u8| (byte < 0x20) | (byte == b'"') | (byte == b'\\');
        chunk.iter().fold(false, |is, byte| is | is_escaped(*byte))
    }
    // The last chunk may overlap with the one before it.
    if let Some(last) = text.last_chunk::<16>() {
        let (chunks, _) = text.as_chunks::<16>();
        return in_chunk(last) || chunks.iter().any(|chunk| in_chunk(chunk));
    }
    match (text.first_chunk::<8>(), text.last_chunk::<8>()) {
        (Some(first), Some(last)) => in_chunk(first) || in_chunk(last),
        _ => in_chunk(text),
    }
}

/// Numbers, and what is rarely in a line, are left to serde_json.
macro_rules! delegate {
    ($($method:ident: $type:ty),+) => {$(
        fn $method(self, value: $type) -> Result<(), Error> {
            serde_json::to_writer(self.0, &value)
        }
    )+};
}

impl<'o, const IS_ASCII: bool> ser::Serializer for Writer<'o, IS_ASCII> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Items<'o>;
    type SerializeTuple = Items<'o>;
    type SerializeTupleStruct = Items<'o>;
    type SerializeTupleVariant = Items<'o>;
    type SerializeMap = Items<'o>;
    type SerializeStruct = Items<'o>;
    type SerializeStructVariant = Items<'o>;

    delegate!(
        serialize_i8: i8,
        serialize_i16: i16,
        serialize_i32: i32,
        serialize_i64: i64,
        serialize_i128: i128,
        serialize_u8: u8,
        serialize_u16: u16,
        serialize_u32: u32,
        serialize_u64: u64,
        serialize_u128: u128,
        serialize_f32: f32,
        serialize_f64: f64,
        serialize_char: char
    );

    fn is_human_readable(&self) -> bool {
        !IS_ASCII
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), Error> {
        if IS_ASCII {
            self.quoted(value);
            return Ok(());
        }
        serde_json::to_writer(self.0, value)
    }

    fn serialize_bool(self, value: bool) -> Result<(), Error> {
        self.0
            .extend_from_slice(if value { b"true" } else { b"false" });
        Ok(())
    }

    fn serialize_str(self, value: &str) -> Result<(), Error> {
        if has_escape(value.as_bytes()) {
            return serde_json::to_writer(self.0, value);
        }
        self.quoted(value.as_bytes());
        Ok(())
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.0.extend_from_slice(b"null");
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Error> {
        self.serialize_none()
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Error> {
        self.serialize_none()
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
    ) -> Result<(), Error> {
        self.quoted(name.as_bytes());
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        if name == ASCII {
            value.serialize(Writer::<true>(self.0))
        } else {
            value.serialize(self)
        }
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        let mut variant = Items::open(self.0, b'{', "}");
        variant.field(name, value)?;
        variant.close();
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Items<'o>, Error> {
        Ok(Items::open(self.0, b'[', "]"))
    }

    fn serialize_tuple(self, _: usize) -> Result<Items<'o>, Error> {
        self.serialize_seq(None)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Items<'o>, Error> {
        self.serialize_seq(None)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        _: usize,
    ) -> Result<Items<'o>, Error> {
        variant(self, name, b'[', "]}")
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Items<'o>, Error> {
        Ok(Items::open(self.0, b'{', "}"))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Items<'o>, Error> {
        self.serialize_map(None)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        _: usize,
    ) -> Result<Items<'o>, Error> {
        variant(self, name, b'{', "}}")
    }

    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<(), Error> {
        let start = self.0.len();
        self.0.push(b'"');
        write!(self.0, "{value}").map_err(ser::Error::custom)?;
        if has_escape(&self.0[start + 1..]) {
            self.0.truncate(start);
            return serde_json::to_writer(self.0, &format_args!("{value}"));
        }
        self.0.push(b'"');
        Ok(())
    }
}

fn variant<'o, const IS_ASCII: bool>(
    writer: Writer<'o, IS_ASCII>,
    name: &str,
    open: u8,
    close: &'static str,
) -> Result<Items<'o>, Error> {
    writer.0.push(b'{');
    Writer::<IS_ASCII>(writer.0).quoted(name.as_bytes());
    writer.0.push(b':');
    Ok(Items::open(writer.0, open, close))
}

/// Lists and objects whose parts are written by one method each.
macro_rules! items {
    ($($trait:ident: $method:ident ($($name:ident)?)),+) => {$(
        impl ser::$trait for Items<'_> {
            type Ok = ();
            type Error = Error;

            #[inline(always)]
            fn $method<T: Serialize + ?Sized>(
                &mut self,
                $($name: &'static str,)?
                value: &T,
            ) -> Result<(), Error> {
                items!(@write self, $($name)?, value)
            }

            fn end(self) -> Result<(), Error> {
                self.close();
                Ok(())
            }
        }
    )+};
    (@write $self:ident, , $value:ident) => { $value.serialize($self.next()) };
    (@write $self:ident, $name:ident, $value:ident) => { $self.field($name, $value) };
}

items!(
    SerializeSeq: serialize_element(),
    SerializeTuple: serialize_element(),
    SerializeTupleStruct: serialize_field(),
    SerializeTupleVariant: serialize_field(),
    SerializeStruct: serialize_field(name),
    SerializeStructVariant: serialize_field(name)
);

impl ser::SerializeMap for Items<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        let Writer(out) = self.next();
        let start = out.len();
        key.serialize(Writer::<false>(out))?;
        // A number.
        if out.get(start) != Some(&b'"') {
            out.insert(start, b'"');
            out.push(b'"');
        }
        out.push(b':');
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(Writer::<false>(self.out))
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::{collections::BTreeMap, net::Ipv6Addr, sync::Arc, time::Duration};

    use detector_engine::{ConflictId, EvidenceDetail, Mac, Network, diagnosis::Cause};
    use proptest::{collection::vec, prelude::*};
    use serde::Serialize;

    use super::*;
    use crate::{AnyEvent, ChangedField, NewestBy, WallTime, samples};

    fn assert_same(value: &impl Serialize) {
        let mut json = b"before".to_vec();
        write_json(value, &mut json).unwrap();
        let expected = format!("before{}", serde_json::to_string(value).unwrap());
        assert_eq!(String::from_utf8(json).unwrap(), expected);
    }

    /// Text with and without characters that JSON escapes.
    fn text() -> impl Strategy<Value = String> {
        let plain = || proptest::char::range(' ', '~');
        let odd = prop_oneof![
            proptest::char::range('\0', '\u{7f}'),
            any::<char>(),
            Just('"')
        ];
        let any = vec(prop_oneof![9 => plain(), 1 => odd], 0..40);
        any.prop_map(String::from_iter)
    }

    fn time() -> impl Strategy<Value = WallTime> {
        any::<i64>().prop_map(|nanos| WallTime::from_unix_nanos(nanos).unwrap_or(samples::time()))
    }

    fn conflict_event() -> impl Strategy<Value = AnyEvent> {
        let texts = vec(text(), 9);
        let numbers = (
            any::<u128>(),
            any::<[u8; 6]>(),
            any::<Option<u32>>(),
            any::<u128>(),
        );
        (texts, vec(time(), 4), numbers, any::<[bool; 3]>()).prop_map(
            |(texts, times, (id, mac, seconds, address), [has_pod, is_newest, is_explained])| {
                let mut texts = texts.into_iter();
                let mut text = || texts.next().unwrap_or_default();
                let mut event = samples::raised("10.0.0.1");
                event.id = text();
                event.time = times[0];
                event.subject = Ipv6Addr::from(address).into();
                let data = &mut event.data;
                data.conflict_id = ConflictId(id);
                data.network = Network::Vrf(text());
                data.cluster = has_pod.then(&mut text);
                data.changed = vec![ChangedField::Pod, ChangedField::TrafficGoesTo];
                data.duration_seconds = seconds.map(|n| Duration::from_millis(n.into()));
                data.resolved_at = is_newest.then_some(times[1]);
                let diagnosis = || Arc::new(samples::diagnosis(Cause::IpamStateWiped, 7));
                data.diagnosis = is_explained.then(diagnosis);
                let claimant = &mut data.claimants[0];
                claimant.device = text();
                claimant.mac = Some(Mac(mac));
                claimant.since = Some(times[2]);
                claimant.since_unknown_because = is_explained.then(|| text().into());
                claimant.newest = is_newest;
                claimant.newest_by = is_newest.then_some(NewestBy::FirstSight);
                claimant.evidence[0].last_seen = times[3];
                claimant.evidence[0].detail = Some(EvidenceDetail::Text(text()));
                let pod = Arc::make_mut(claimant.pod.as_mut().unwrap());
                pod.name = text();
                pod.labels.insert(text(), text());
                if !has_pod {
                    claimant.pod = None;
                }
                event.into()
            },
        )
    }

    /// Each form of a value that serde knows.
    #[derive(Clone, Debug, Serialize)]
    enum Form {
        Unit,
        Newtype(Box<Form>),
        Tuple(u8, Option<bool>, i128),
        Struct { text: String, float: f64 },
        Numbers(BTreeMap<i32, (f32, char)>),
        Texts(BTreeMap<String, Vec<i64>>),
        Flat(Flat),
        Bytes([u8; 2], ()),
    }

    #[derive(Clone, Debug, Serialize)]
    struct Flat {
        #[serde(flatten)]
        texts: BTreeMap<String, u64>,
        pair: Pair,
    }

    #[derive(Clone, Debug, Serialize)]
    struct Pair(u16, i8);

    fn form() -> impl Strategy<Value = Form> {
        let leaf = prop_oneof![
            Just(Form::Unit),
            any::<(u8, Option<bool>, i128)>().prop_map(|(a, b, c)| Form::Tuple(a, b, c)),
            (text(), any::<f64>()).prop_map(|(text, float)| Form::Struct { text, float }),
            vec((any::<i32>(), any::<(f32, char)>()), 0..3)
                .prop_map(|all| Form::Numbers(all.into_iter().collect())),
            vec((text(), vec(any::<i64>(), 0..3)), 0..3)
                .prop_map(|all| Form::Texts(all.into_iter().collect())),
            (vec((text(), any::<u64>()), 0..3), any::<(u16, i8)>()).prop_map(|(all, (a, b))| {
                Form::Flat(Flat {
                    texts: all.into_iter().collect(),
                    pair: Pair(a, b),
                })
            }),
            any::<[u8; 2]>().prop_map(|bytes| Form::Bytes(bytes, ())),
        ];
        leaf.prop_recursive(3, 8, 1, |form| {
            form.prop_map(|form| Form::Newtype(Box::new(form)))
        })
    }

    proptest! {
        #[test]
        fn conflicts_are_written_as_serde_json_does(event in conflict_event()) {
            assert_same(&event);
        }

        #[test]
        fn every_form_of_a_value_is_written_as_serde_json_does(forms in vec(form(), 0..4)) {
            assert_same(&forms);
        }

        #[test]
        fn texts_are_escaped_as_serde_json_does(text in text()) {
            assert_same(&text);
            assert_same(&format_args!("{text}"));
        }
    }

    #[test]
    fn anomalies_are_written_as_serde_json_does() {
        for event in [samples::drift("10.0.0.1"), samples::sweep("fd00::1")] {
            assert_same(&AnyEvent::from(event));
        }
    }

    #[test]
    fn each_byte_is_escaped_as_serde_json_does_at_each_place() {
        for byte in 0..=0x7f {
            for place in 0..20 {
                let mut text = "a".repeat(20);
                text.replace_range(place..=place, &char::from(byte).to_string());
                assert_same(&text);
            }
        }
    }
}
