import java.nio.charset.StandardCharsets;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.util.BloomFilter;

/** One line in: hex(expression) hex(name)=hex(value) ...  One letter out: P parse error, T, F, N null or no boolean, X exception.  "bloom hex(key)": its bit positions. */
public class Filters {
    static String text(String hex) {
        byte[] bytes = new byte[hex.length() / 2];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return new String(bytes, StandardCharsets.UTF_8);
    }

    static String evaluate(String[] words) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get(ExpressionType.SQL92).compile(text(words[0]));
        } catch (Throwable error) {
            return "P";
        }
        Map<String, Object> properties = new HashMap<>();
        for (int i = 1; i < words.length; i++) {
            String[] parts = words[i].split("=", -1);
            properties.put(text(parts[0]), text(parts[1]));
        }
        try {
            Object value = expression.evaluate(new EvaluationContext() {
                public Object get(String name) {
                    return properties.get(name);
                }

                public Map<String, Object> keyValues() {
                    return properties;
                }
            });
            return value instanceof Boolean ? ((Boolean) value ? "T" : "F") : "N";
        } catch (Throwable error) {
            return "X";
        }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("bloom")) {
                BloomFilter filter = BloomFilter.createByFn(20, 32);
                StringBuilder positions = new StringBuilder();
                for (int position : filter.generate(text(words[1])).getBitPos()) {
                    positions.append(position).append(',');
                }
                out.append(positions).append(filter.getM()).append('\n');
            } else {
                out.append(evaluate(words)).append('\n');
            }
        }
        System.out.print(out);
    }
}
