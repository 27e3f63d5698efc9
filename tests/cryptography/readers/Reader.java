import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.security.KeyFactory;
import java.security.PublicKey;
import java.security.SecureRandom;
import java.security.Security;
import java.security.Signature;
import java.security.spec.X509EncodedKeySpec;
import java.util.HexFormat;
import org.bouncycastle.crypto.SecretWithEncapsulation;
import org.bouncycastle.jce.provider.BouncyCastleProvider;
import org.bouncycastle.pqc.crypto.mlkem.MLKEMGenerator;
import org.bouncycastle.pqc.crypto.mlkem.MLKEMPublicKeyParameters;
import org.bouncycastle.pqc.crypto.util.PublicKeyFactory;

/**
 * Reads public keys with Bouncy Castle. A line on standard input is a family (ML-KEM, ML-DSA,
 * SLH-DSA), a SubjectPublicKeyInfo, and for signatures a message and a signature, in hexadecimal.
 * The answer is a line: the algorithm, the SubjectPublicKeyInfo as written again, and for ML-KEM a
 * ciphertext and its shared secret, for signatures whether the signature is valid.
 */
final class Reader {
    public static void main(String[] arguments) throws Exception {
        Security.addProvider(new BouncyCastleProvider());
        HexFormat hex = HexFormat.of();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            byte[] encoded = hex.parseHex(words[1]);
            KeyFactory factory = KeyFactory.getInstance(words[0], "BC");
            PublicKey key = factory.generatePublic(new X509EncodedKeySpec(encoded));
            String answer = key.getAlgorithm() + " " + hex.formatHex(key.getEncoded());
            if (words.length > 2) {
                Signature verifier = Signature.getInstance(words[0], "BC");
                verifier.initVerify(key);
                verifier.update(hex.parseHex(words[2]));
                answer += " " + verifier.verify(hex.parseHex(words[3]));
            } else {
                SecretWithEncapsulation made =
                        new MLKEMGenerator(new SecureRandom())
                                .generateEncapsulated(
                                        (MLKEMPublicKeyParameters) PublicKeyFactory.createKey(encoded));
                answer += " " + hex.formatHex(made.getEncapsulation());
                answer += " " + hex.formatHex(made.getSecret());
            }
            System.out.println(answer);
        }
    }
}
