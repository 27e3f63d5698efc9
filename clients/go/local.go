package pqkeep

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// Local encrypts data of any size in this process, to the active key of an algorithm. Decryption asks
// the service for the shared secret only.
type Local struct{ client *Client }

// LocalOptions are the options of local encryption.
type LocalOptions struct {
	// Algorithm is Kyber768, X-Wing or ML-KEM-1024. Empty means Kyber768.
	Algorithm string
	// Keyring is the keyring's name. Empty means default.
	Keyring string
	// Recipients can decrypt the data too.
	Recipients []Recipient
	// Replace allows EncryptFile and DecryptFile to replace an existing file.
	Replace bool
}

// Recipient returns a tenant's active key as a recipient.
func (l Local) Recipient(ctx context.Context, algorithm, keyring string) (Recipient, error) {
	if algorithm == "" {
		algorithm = "Kyber768"
	}
	if _, isKnown := kemNamed(algorithm); !isKnown {
		return Recipient{}, &Error{
			Kind: ErrInvalidRequest, Field: "algorithm",
			Message: "local encryption does not support this algorithm: use Kyber768, X-Wing or ML-KEM-1024",
		}
	}
	key, err := l.client.Keys.Active(ctx, algorithm, keyring)
	if err != nil {
		return Recipient{}, err
	}
	made := Recipient{PublicKey: key.PublicKey, Algorithm: algorithm, KeyVersion: key.KeyVersion, Keyring: keyring}
	if _, err := wrap(make([]byte, keySize), made); err != nil {
		return Recipient{}, malformed("the key in the response is not valid for the algorithm", "public_key")
	}
	return made, nil
}

func (l Local) recipients(ctx context.Context, options LocalOptions) ([]Recipient, error) {
	own, err := l.Recipient(ctx, options.Algorithm, options.Keyring)
	return append([]Recipient{own}, options.Recipients...), err
}

func (l Local) decapsulate(ctx context.Context) Decapsulate {
	return func(recipient WrappedKey) ([]byte, error) {
		keyring := recipient.Keyring
		if keyring == defaultKeyring {
			keyring = ""
		}
		return l.client.KEM.Decapsulate(ctx, recipient.KEMCiphertext, recipient.KeyVersion,
			Options{Algorithm: recipient.Algorithm, Keyring: keyring})
	}
}

// Encrypt encrypts data in memory.
func (l Local) Encrypt(ctx context.Context, plaintext []byte, options LocalOptions) ([]byte, error) {
	to, err := l.recipients(ctx, options)
	if err != nil {
		return nil, err
	}
	var target bytes.Buffer
	if err := EncryptLocal(&target, bytes.NewReader(plaintext), to, 0); err != nil {
		return nil, err
	}
	return target.Bytes(), nil
}

// Decrypt decrypts data in memory.
func (l Local) Decrypt(ctx context.Context, ciphertext []byte) ([]byte, error) {
	var target bytes.Buffer
	if err := l.DecryptStream(ctx, &target, bytes.NewReader(ciphertext)); err != nil {
		return nil, err
	}
	return target.Bytes(), nil
}

// EncryptStream encrypts all data of a reader. The context limits the requests, not the reader.
func (l Local) EncryptStream(ctx context.Context, target io.Writer, source io.Reader, options LocalOptions) error {
	to, err := l.recipients(ctx, options)
	if err != nil {
		return err
	}
	return EncryptLocal(target, source, to, DefaultCapacity)
}

// DecryptStream decrypts all data of a reader. Every written byte is authenticated. The output is
// complete only if it returns nil, so do not use it before.
func (l Local) DecryptStream(ctx context.Context, target io.Writer, source io.Reader) error {
	return DecryptLocal(target, source, l.decapsulate(ctx))
}

// EncryptFile encrypts a file. The new file (mode 0600) appears when it is complete and on disk.
func (l Local) EncryptFile(ctx context.Context, source, target string, options LocalOptions) error {
	return convert(source, target, options.Replace, func(to io.Writer, from io.Reader) error {
		return l.EncryptStream(ctx, to, from, options)
	})
}

// DecryptFile decrypts a file. The new file (mode 0600) appears when it is complete and on disk. Of
// the options it uses Replace.
func (l Local) DecryptFile(ctx context.Context, source, target string, options LocalOptions) error {
	return convert(source, target, options.Replace, func(to io.Writer, from io.Reader) error {
		return l.DecryptStream(ctx, to, from)
	})
}

// convert writes a new file under another name, and gives it its name when it is complete and on
// disk. After an error nothing is left.
func convert(source, target string, replace bool, write func(io.Writer, io.Reader) error) (err error) {
	if _, err := os.Lstat(target); !replace && err == nil {
		return &fs.PathError{Op: "create", Path: target, Err: fs.ErrExist}
	}
	from, err := os.Open(source)
	if err != nil {
		return err
	}
	defer from.Close()
	folder := filepath.Dir(target)
	made, err := os.CreateTemp(folder, ".pqkeep-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(made.Name())
		}
	}()
	err = write(made, from)
	if err == nil {
		err = made.Sync()
	}
	if err = errors.Join(err, made.Close()); err != nil {
		return only(err)
	}
	if replace {
		err = os.Rename(made.Name(), target)
	} else if err = os.Link(made.Name(), target); err == nil { // fails if the name was taken meanwhile
		err = os.Remove(made.Name())
	}
	if err != nil {
		return err
	}
	return syncFolder(folder)
}

// only returns the error itself if a joined error has one.
func only(err error) error {
	if joined, isJoined := err.(interface{ Unwrap() []error }); isJoined && len(joined.Unwrap()) == 1 {
		return joined.Unwrap()[0]
	}
	return err
}

func syncFolder(name string) error {
	if runtime.GOOS == "windows" { // it has no fsync of folders
		return nil
	}
	folder, err := os.Open(name)
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}
