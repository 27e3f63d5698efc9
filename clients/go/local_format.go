package pqkeep

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/mlkem"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha3"
	"crypto/sha512"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"regexp"
)

// The format is described byte by byte in docs/local-format.md.
const (
	keySize         = 32
	tagSize         = 16
	wrappedSize     = keySize + tagSize
	fingerprintSize = 32
	macSize         = 48
	checksumSize    = 48
	endSize         = macSize + checksumSize
	prefixSize      = 13
	recipientsAt    = 22
	smallestSlot    = recipientsAt + endSize
	largestSlot     = 65536
	block           = 4096
	segmentSize     = 256 * 1024
	maxSegments     = 1 << 32
	mlkem768Public  = 1184
	// largestRecipient is the size of one with ML-KEM-1024 and the longest keyring name.
	largestRecipient = 1 + 4 + 1 + 128 + fingerprintSize + 1568 + wrappedSize

	// MaxRecipients is the most recipients of a file.
	MaxRecipients = 32
	// DefaultCapacity is the number of recipients of any kind that a file's header can have.
	DefaultCapacity = 4
	defaultKeyring  = "default"
	format          = 2
	magic           = "pqkeep\x00"
	protocol        = "pqkeep/local/v2"
)

var keyringName = regexp.MustCompile(`\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\z`)

type kem struct {
	name           string
	number         byte
	ciphertextSize int
	hash           func() hash.Hash
	encapsulate    func(publicKey []byte) (secret, ciphertext []byte, err error)
}

var kems = []kem{
	{"Kyber768", 1, mlkem.CiphertextSize768, sha256.New, encapsulate768},
	{"X-Wing", 2, mlkem.CiphertextSize768 + 32, sha256.New, encapsulateXWing},
	{"ML-KEM-1024", 3, mlkem.CiphertextSize1024, sha512.New384, encapsulate1024},
}

func kemNamed(name string) (kem, bool) {
	for _, known := range kems {
		if known.name == canonical(name) {
			return known, true
		}
	}
	return kem{}, false
}

func kemNumbered(number byte) (kem, bool) {
	for _, known := range kems {
		if known.number == number {
			return known, true
		}
	}
	return kem{}, false
}

func encapsulate768(publicKey []byte) (secret, ciphertext []byte, err error) {
	key, err := mlkem.NewEncapsulationKey768(publicKey)
	if err != nil {
		return nil, nil, err
	}
	secret, ciphertext = key.Encapsulate()
	return secret, ciphertext, nil
}

func encapsulate1024(publicKey []byte) (secret, ciphertext []byte, err error) {
	key, err := mlkem.NewEncapsulationKey1024(publicKey)
	if err != nil {
		return nil, nil, err
	}
	secret, ciphertext = key.Encapsulate()
	return secret, ciphertext, nil
}

// encapsulateXWing joins ML-KEM-768 and X25519 (draft-connolly-cfrg-xwing-kem). crypto/hpke has this
// KEM too, but does not return its shared secret.
func encapsulateXWing(publicKey []byte) (secret, ciphertext []byte, err error) {
	if len(publicKey) != mlkem768Public+32 {
		return nil, nil, errors.New("wrong size")
	}
	xPublic := publicKey[mlkem768Public:]
	mSecret, mCiphertext, err := encapsulate768(publicKey[:mlkem768Public])
	if err != nil {
		return nil, nil, err
	}
	recipient, err := ecdh.X25519().NewPublicKey(xPublic)
	if err != nil {
		return nil, nil, err
	}
	ephemeral, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	xSecret, err := ephemeral.ECDH(recipient)
	if err != nil {
		return nil, nil, err
	}
	xCiphertext := ephemeral.PublicKey().Bytes()
	joined := sha3.Sum256(bytes.Join([][]byte{mSecret, xSecret, xCiphertext, xPublic, []byte(`\.//^\`)}, nil))
	return joined[:], append(mCiphertext, xCiphertext...), nil
}

// derive returns the output of HKDF without a salt. Each part of the info follows its length.
func derive(h func() hash.Hash, secret []byte, size int, purpose ...[]byte) []byte {
	info := []byte{}
	for _, part := range append([][]byte{[]byte(protocol)}, purpose...) {
		info = binary.BigEndian.AppendUint16(info, uint16(len(part)))
		info = append(info, part...)
	}
	key, err := hkdf.Key(h, secret, nil, string(info), size)
	if err != nil {
		panic("pqkeep: " + err.Error()) // only for a key of impossible size
	}
	return key
}

func newAEAD(key []byte) cipher.AEAD {
	blockCipher, err := aes.NewCipher(key)
	if err != nil {
		panic("pqkeep: " + err.Error()) // only for a key of another size
	}
	aead, err := cipher.NewGCM(blockCipher)
	if err != nil {
		panic("pqkeep: " + err.Error())
	}
	return aead
}

// A Recipient is a public key to encrypt to, with the names by which its owner finds the private key.
type Recipient struct {
	PublicKey  []byte
	Algorithm  string
	KeyVersion int
	// Keyring is the keyring's name. Empty means default.
	Keyring string
}

// A WrappedKey is a recipient in a header. Nothing of it is authenticated until the file is open.
type WrappedKey struct {
	Algorithm  string
	KeyVersion int
	Keyring    string
	// Fingerprint is the SHA-256 of the public key.
	Fingerprint   [fingerprintSize]byte
	KEMCiphertext []byte

	kem     kem
	bound   []byte // everything before the wrapped key
	wrapped []byte
}

// A Header has the facts that are readable without a key. They are not authenticated.
type Header struct {
	Recipients []WrappedKey
	// Sequence is the number of changes to the recipients, plus one.
	Sequence uint64
	// IsSettled is false after an interrupted change.
	IsSettled bool

	slot []byte
}

// wrap wraps a file key for a recipient. The errors are ErrInvalidRequest.
func wrap(fileKey []byte, to Recipient) (WrappedKey, error) {
	invalid := func(message string) (WrappedKey, error) {
		return WrappedKey{}, &Error{Kind: ErrInvalidRequest, Message: message}
	}
	kem, isKnown := kemNamed(to.Algorithm)
	if to.Keyring == "" {
		to.Keyring = defaultKeyring
	}
	switch {
	case !isKnown:
		return invalid("local encryption does not support this algorithm: use Kyber768, X-Wing or ML-KEM-1024")
	case to.KeyVersion < 1 || int64(to.KeyVersion) > math.MaxUint32:
		return invalid("the key version must be from 1 to 4294967295")
	case !keyringName.MatchString(to.Keyring):
		return invalid("the keyring's name must be 1 to 128 of A-Z, a-z, 0-9, '_', '.' and '-'")
	}
	secret, ciphertext, err := kem.encapsulate(to.PublicKey)
	if err != nil {
		return invalid("the public key is not one of " + kem.name)
	}
	fingerprint := sha256.Sum256(to.PublicKey)
	bound := []byte{kem.number}
	bound = binary.BigEndian.AppendUint32(bound, uint32(to.KeyVersion))
	bound = append(bound, byte(len(to.Keyring)))
	bound = append(bound, to.Keyring...)
	bound = append(bound, fingerprint[:]...)
	bound = append(bound, ciphertext...)
	key := derive(kem.hash, secret, keySize, []byte("wrapping key"), bound)
	return WrappedKey{
		Algorithm: kem.name, KeyVersion: to.KeyVersion, Keyring: to.Keyring, Fingerprint: fingerprint,
		KEMCiphertext: ciphertext, kem: kem, bound: bound,
		wrapped: newAEAD(key).Seal(nil, make([]byte, 12), fileKey, nil),
	}, nil
}

// newHeader returns the header of a new file. With capacity 0 it is as short as possible.
func newHeader(fileKey []byte, recipients []Recipient, capacity int) ([]byte, error) {
	if capacity < 0 || capacity > MaxRecipients {
		return nil, &Error{Kind: ErrInvalidRequest, Message: fmt.Sprintf("the capacity must be 0 to %d recipients", MaxRecipients)}
	}
	content := []byte{}
	known := map[string]bool{}
	for _, recipient := range recipients {
		wrapped, err := wrap(fileKey, recipient)
		if err != nil {
			return nil, err
		}
		identity := wrapped.Algorithm + string(wrapped.Fingerprint[:])
		if !known[identity] {
			known[identity] = true
			content = append(append(content, wrapped.bound...), wrapped.wrapped...)
		}
	}
	if len(known) < 1 || len(known) > MaxRecipients {
		return nil, &Error{Kind: ErrInvalidRequest, Message: fmt.Sprintf("there must be 1 to %d recipients", MaxRecipients)}
	}
	slots, size := 1, smallestSlot+len(content)
	if capacity > 0 {
		size = max(size, smallestSlot+capacity*largestRecipient)
		slots, size = 2, (size+block-1)/block*block
	}
	slot := append([]byte(magic), format, byte(slots))
	slot = binary.BigEndian.AppendUint32(slot, uint32(size))
	slot = binary.BigEndian.AppendUint64(slot, 1)
	slot = append(append(slot, byte(len(known))), content...)
	slot = append(slot, make([]byte, size-endSize-len(slot))...)
	slot = append(slot, headerMAC(fileKey, slot)...)
	checksum := sha512.Sum384(slot)
	return bytes.Repeat(append(slot, checksum[:]...), slots), nil
}

func headerMAC(fileKey, content []byte) []byte {
	digest := sha512.Sum384(content)
	return derive(sha512.New384, fileKey, macSize, []byte("header"), digest[:])
}

func dataKey(fileKey []byte) []byte {
	return derive(sha512.New384, fileKey, keySize, []byte("data key"))
}

// ReadLocalHeader reads the header of encrypted data, which lists the keys that open it. The error is
// an ErrUnreadableInput for other data and for a cut header, and an ErrDecryption for a changed one.
func ReadLocalHeader(source io.Reader) (*Header, error) {
	prefix := make([]byte, prefixSize)
	count, err := io.ReadFull(source, prefix)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, err
	}
	slots, size, err := readLayout(prefix[:count])
	if err != nil {
		return nil, err
	}
	data := make([]byte, slots*size)
	copy(data, prefix)
	if _, err := io.ReadFull(source, data[prefixSize:]); err == io.EOF || err == io.ErrUnexpectedEOF {
		return nil, cut()
	} else if err != nil {
		return nil, err
	}
	header := &Header{IsSettled: slots == 1 || bytes.Equal(data[:size], data[size:])}
	for at := 0; at < len(data); at += size {
		slot := data[at : at+size]
		checksum := sha512.Sum384(slot[:size-checksumSize])
		sequence := binary.BigEndian.Uint64(slot[prefixSize:])
		isWhole := bytes.HasPrefix(slot, prefix) && bytes.Equal(checksum[:], slot[size-checksumSize:])
		if isWhole && (header.slot == nil || sequence > header.Sequence) { // the first, of two alike
			header.slot, header.Sequence = slot, sequence
		}
	}
	if header.slot == nil {
		return nil, damaged("the header is damaged")
	}
	header.Recipients, err = readRecipients(header.slot)
	return header, err
}

func readLayout(prefix []byte) (slots, size int, err error) {
	if !bytes.HasPrefix(prefix, []byte(magic)) {
		if len(prefix) > 0 && bytes.HasPrefix([]byte(magic), prefix) {
			return 0, 0, cut()
		}
		return 0, 0, unreadable("the input is not data that pqkeep encrypted locally: use an unchanged file")
	}
	if len(prefix) > len(magic) && prefix[len(magic)] != format {
		return 0, 0, unreadable("the input is in a format that this version does not know: use a newer pqkeep")
	}
	if len(prefix) < prefixSize {
		return 0, 0, cut()
	}
	slots, wide := int(prefix[8]), binary.BigEndian.Uint32(prefix[9:])
	if slots != 1 && slots != 2 || wide < smallestSlot || wide > largestSlot {
		return 0, 0, damaged("the header is damaged: its size is invalid")
	}
	return slots, int(wide), nil
}

func cut() *Error {
	return unreadable("the input was cut off within its header: get the whole file again")
}

func readRecipients(slot []byte) ([]WrappedKey, error) {
	count, rest := int(slot[recipientsAt-1]), slot[recipientsAt:len(slot)-endSize]
	if count < 1 || count > MaxRecipients {
		return nil, damaged("the header is damaged: its number of recipients is invalid")
	}
	recipients, known := []WrappedKey{}, map[string]bool{}
	for range count {
		recipient, size, err := readRecipient(rest)
		if err != nil {
			return nil, err
		}
		identity := recipient.Algorithm + string(recipient.Fingerprint[:])
		if known[identity] {
			return nil, damaged("the header is damaged: a recipient is there twice")
		}
		known[identity] = true
		recipients, rest = append(recipients, recipient), rest[size:]
	}
	if len(bytes.Trim(rest, "\x00")) > 0 {
		return nil, damaged("the header is damaged: data follows its recipients")
	}
	return recipients, nil
}

func readRecipient(data []byte) (recipient WrappedKey, size int, err error) {
	invalid := damaged("the header is damaged: a recipient is invalid")
	if len(data) < 6 {
		return recipient, 0, invalid
	}
	kem, isKnown := kemNumbered(data[0])
	if !isKnown {
		return recipient, 0, damaged("the header is damaged: the algorithm of a recipient is unknown")
	}
	version, nameEnd := binary.BigEndian.Uint32(data[1:]), 6+int(data[5])
	boundEnd := nameEnd + fingerprintSize + kem.ciphertextSize
	size = boundEnd + wrappedSize
	if len(data) < size || version == 0 || !keyringName.Match(data[6:nameEnd]) {
		return recipient, 0, invalid
	}
	recipient = WrappedKey{
		Algorithm: kem.name, KeyVersion: int(version), Keyring: string(data[6:nameEnd]),
		Fingerprint:   [fingerprintSize]byte(data[nameEnd : nameEnd+fingerprintSize]),
		KEMCiphertext: data[nameEnd+fingerprintSize : boundEnd],
		kem:           kem, bound: data[:boundEnd], wrapped: data[boundEnd:size],
	}
	return recipient, size, nil
}

// open returns the file key for a recipient's shared secret.
func (h *Header) open(recipient WrappedKey, secret []byte) ([]byte, error) {
	key := derive(recipient.kem.hash, secret, keySize, []byte("wrapping key"), recipient.bound)
	fileKey, err := newAEAD(key).Open(nil, make([]byte, 12), recipient.wrapped, nil)
	if err != nil {
		return nil, damaged("the data was encrypted to another key than the one in use, or its header is damaged")
	}
	content, mac := h.slot[:len(h.slot)-endSize], h.slot[len(h.slot)-endSize:len(h.slot)-checksumSize]
	if !hmac.Equal(headerMAC(fileKey, content), mac) {
		return nil, damaged("the header is damaged: its recipients were changed without the file key")
	}
	return fileKey, nil
}

// A Decapsulate recovers the shared secret of a recipient. For an ErrNotFound, ErrDecryption or
// ErrPermissionDenied, the next recipient is tried.
type Decapsulate func(recipient WrappedKey) ([]byte, error)

// fileKey returns the file key by the first recipient that opens it.
func (h *Header) fileKey(decapsulate Decapsulate) ([]byte, error) {
	var failures []error
	for _, recipient := range h.Recipients {
		secret, err := decapsulate(recipient)
		if err == nil {
			var key []byte
			if key, err = h.open(recipient, secret); err == nil {
				return key, nil
			}
		}
		if !isSkipped(err) {
			return nil, err
		}
		failures = append(failures, err)
	}
	if len(failures) == 1 {
		return nil, failures[0]
	}
	return nil, damaged(fmt.Sprintf("none of the %d recipients' keys can be used here", len(failures)))
}

func isSkipped(err error) bool {
	return errors.Is(err, ErrDecryption) || errors.Is(err, ErrNotFound) || errors.Is(err, ErrPermissionDenied)
}

func segmentNonce(number uint64, isLast bool) []byte {
	nonce := make([]byte, 12)
	binary.BigEndian.PutUint32(nonce[7:], uint32(number))
	if isLast {
		nonce[11] = 1
	}
	return nonce
}

// eachPiece calls take with pieces of a size, and whether each is the last. The last may be shorter.
// There is at least one piece, which may be empty.
func eachPiece(source io.Reader, size int, take func(number uint64, piece []byte, isLast bool) error) error {
	pieces := [2][]byte{make([]byte, size), make([]byte, size)}
	count, err := readPiece(source, pieces[0])
	for number := uint64(0); err == nil; number++ {
		following := 0
		if count == size {
			if following, err = readPiece(source, pieces[(number+1)%2]); err != nil {
				return err
			}
		}
		if err = take(number, pieces[number%2][:count], following == 0); err != nil || following == 0 {
			return err
		}
		count = following
	}
	return err
}

func readPiece(source io.Reader, piece []byte) (int, error) {
	count, err := io.ReadFull(source, piece)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = nil
	}
	return count, err
}

// EncryptLocal encrypts all data of a reader for recipients. It needs no service. The capacity is the
// number of recipients that the header can have later without a copy of the file; 0 makes the data
// as short as possible.
func EncryptLocal(target io.Writer, source io.Reader, recipients []Recipient, capacity int) error {
	fileKey := make([]byte, keySize)
	rand.Read(fileKey) // never fails
	header, err := newHeader(fileKey, recipients, capacity)
	if err != nil {
		return err
	}
	if _, err := target.Write(header); err != nil {
		return err
	}
	aead := newAEAD(dataKey(fileKey))
	sealed := make([]byte, 0, segmentSize+tagSize)
	return eachPiece(source, segmentSize, func(number uint64, piece []byte, isLast bool) error {
		if number >= maxSegments {
			return &Error{Kind: ErrInvalidRequest, Message: "this is more data than one file can hold"}
		}
		_, err := target.Write(aead.Seal(sealed, segmentNonce(number, isLast), piece, nil))
		return err
	})
}

// DecryptLocal decrypts all data of a reader. Every written byte is authenticated. The output is
// complete only if DecryptLocal returns nil, so do not use it before.
func DecryptLocal(target io.Writer, source io.Reader, decapsulate Decapsulate) error {
	header, err := ReadLocalHeader(source)
	if err != nil {
		return err
	}
	fileKey, err := header.fileKey(decapsulate)
	if err != nil {
		return err
	}
	return decryptSegments(target, source, fileKey)
}

func decryptSegments(target io.Writer, source io.Reader, fileKey []byte) error {
	aead := newAEAD(dataKey(fileKey))
	opened := make([]byte, 0, segmentSize)
	return eachPiece(source, segmentSize+tagSize, func(number uint64, piece []byte, isLast bool) error {
		if len(piece) < tagSize {
			return unreadable(fmt.Sprintf("the input was cut off in segment %d: get the whole file again", number))
		}
		plaintext, err := aead.Open(opened, segmentNonce(number, isLast), piece, nil)
		if err != nil || number >= maxSegments {
			return damaged(fmt.Sprintf("segment %d is damaged or not in its place, or the data was cut off there", number))
		}
		if number > 0 && len(plaintext) == 0 {
			return damaged("the data ends with an empty segment")
		}
		_, err = target.Write(plaintext)
		return err
	})
}
