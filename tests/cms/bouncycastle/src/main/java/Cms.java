// CMS by Bouncy Castle: Cms COMMAND KEY INPUT OUTPUT, all files in DER. test_clients.py runs it.
// Cms generate ALGORITHM PRIVATE PUBLIC makes a key.

import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.security.MessageDigest;
import java.security.PrivateKey;
import java.security.PublicKey;
import java.security.Security;
import java.security.spec.PKCS8EncodedKeySpec;
import java.security.spec.X509EncodedKeySpec;
import org.bouncycastle.asn1.pkcs.PKCSObjectIdentifiers;
import org.bouncycastle.asn1.pkcs.PrivateKeyInfo;
import org.bouncycastle.asn1.x509.AlgorithmIdentifier;
import org.bouncycastle.asn1.x509.SubjectPublicKeyInfo;
import org.bouncycastle.cms.CMSAlgorithm;
import org.bouncycastle.cms.CMSAuthEnvelopedData;
import org.bouncycastle.cms.CMSAuthEnvelopedDataGenerator;
import org.bouncycastle.cms.CMSProcessableByteArray;
import org.bouncycastle.cms.CMSSignedData;
import org.bouncycastle.cms.CMSSignedDataGenerator;
import org.bouncycastle.cms.RecipientInformation;
import org.bouncycastle.cms.SignerInformation;
import org.bouncycastle.cms.jcajce.JcaSignerInfoGeneratorBuilder;
import org.bouncycastle.cms.jcajce.JcaSimpleSignerInfoVerifierBuilder;
import org.bouncycastle.cms.jcajce.JceCMSContentEncryptorBuilder;
import org.bouncycastle.cms.jcajce.JceKEMAuthEnvelopedRecipient;
import org.bouncycastle.cms.jcajce.JceKEMRecipientInfoGenerator;
import org.bouncycastle.jce.provider.BouncyCastleProvider;
import org.bouncycastle.operator.OutputAEADEncryptor;
import org.bouncycastle.operator.jcajce.JcaContentSignerBuilder;
import org.bouncycastle.operator.jcajce.JcaDigestCalculatorProviderBuilder;

public final class Cms {
  private static final BouncyCastleProvider BC = new BouncyCastleProvider();

  public static void main(String[] arguments) throws Exception {
    Security.addProvider(BC);
    if (arguments[0].equals("generate")) {
      generate(arguments[1], Path.of(arguments[2]), Path.of(arguments[3]));
      return;
    }
    byte[] key = Files.readAllBytes(Path.of(arguments[1]));
    byte[] input = Files.readAllBytes(Path.of(arguments[2]));
    byte[] output = switch (arguments[0]) {
      case "encrypt" -> encrypt(key, input);
      case "decrypt" -> decrypt(key, input);
      case "sign" -> sign(key, input, false);
      case "sign-without-attributes" -> sign(key, input, true);
      case "verify" -> verify(key, input);
      default -> throw new IllegalArgumentException(arguments[0]);
    };
    Files.write(Path.of(arguments[3]), output);
  }

  private static void generate(String algorithm, Path secret, Path open) throws Exception {
    KeyPair pair = KeyPairGenerator.getInstance(algorithm, BC).generateKeyPair();
    Files.write(secret, pair.getPrivate().getEncoded());
    Files.write(open, pair.getPublic().getEncoded());
  }

  private static byte[] encrypt(byte[] key, byte[] data) throws Exception {
    SubjectPublicKeyInfo info = SubjectPublicKeyInfo.getInstance(key);
    CMSAuthEnvelopedDataGenerator generator = new CMSAuthEnvelopedDataGenerator();
    generator.addRecipientInfoGenerator(
        new JceKEMRecipientInfoGenerator(
                identifier(info), publicKey(info), CMSAlgorithm.AES256_WRAP)
            .setKDF(new AlgorithmIdentifier(PKCSObjectIdentifiers.id_alg_hkdf_with_sha256))
            .setProvider(BC));
    OutputAEADEncryptor encryptor =
        (OutputAEADEncryptor)
            new JceCMSContentEncryptorBuilder(CMSAlgorithm.AES256_GCM).setProvider(BC).build();
    return generator.generate(new CMSProcessableByteArray(data), encryptor).getEncoded();
  }

  private static byte[] decrypt(byte[] key, byte[] message) throws Exception {
    CMSAuthEnvelopedData enveloped = new CMSAuthEnvelopedData(message);
    RecipientInformation recipient =
        enveloped.getRecipientInfos().getRecipients().iterator().next();
    return recipient.getContent(
        new JceKEMAuthEnvelopedRecipient(privateKey(key)).setProvider(BC));
  }

  private static byte[] sign(byte[] key, byte[] data, boolean isDirect) throws Exception {
    PrivateKey signer = privateKey(key);
    CMSSignedDataGenerator generator = new CMSSignedDataGenerator();
    generator.addSignerInfoGenerator(
        new JcaSignerInfoGeneratorBuilder(
                new JcaDigestCalculatorProviderBuilder().setProvider(BC).build())
            .setDirectSignature(isDirect)
            .build(
                new JcaContentSignerBuilder(signer.getAlgorithm()).setProvider(BC).build(signer),
                new byte[20]));
    return generator.generate(new CMSProcessableByteArray(data), true).getEncoded();
  }

  private static byte[] verify(byte[] key, byte[] message) throws Exception {
    CMSSignedData signed = new CMSSignedData(message);
    SignerInformation signer = signed.getSignerInfos().getSigners().iterator().next();
    PublicKey by = publicKey(SubjectPublicKeyInfo.getInstance(key));
    if (!signer.verify(new JcaSimpleSignerInfoVerifierBuilder().setProvider(BC).build(by))) {
      throw new IllegalStateException("the signature is not valid");
    }
    return (byte[]) signed.getSignedContent().getContent();
  }

  private static byte[] identifier(SubjectPublicKeyInfo info) throws Exception {
    return MessageDigest.getInstance("SHA-1").digest(info.getPublicKeyData().getBytes());
  }

  private static PublicKey publicKey(SubjectPublicKeyInfo info) throws Exception {
    return KeyFactory.getInstance(info.getAlgorithm().getAlgorithm().getId(), BC)
        .generatePublic(new X509EncodedKeySpec(info.getEncoded()));
  }

  private static PrivateKey privateKey(byte[] key) throws Exception {
    return KeyFactory.getInstance(
            PrivateKeyInfo.getInstance(key).getPrivateKeyAlgorithm().getAlgorithm().getId(), BC)
        .generatePrivate(new PKCS8EncodedKeySpec(key));
  }
}
