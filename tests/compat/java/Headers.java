import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.annotation.Annotation;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.annotation.CFNotNull;
import org.apache.rocketmq.remoting.protocol.LanguageCode;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.SerializeType;

/**
 * Java's own view of numbers, headers and bodies, for the tests of ours: "codes" prints all numbers that have names, "describe" every header class
 * of the release; "echo" reads frames, turns their ext fields or bodies into Java objects and writes them again.
 */
public class Headers {
    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("describe")) describe();
        else if (arguments[0].equals("codes")) codes();
        else echo();
    }

    /** One line per number: kind, name, number. */
    static void codes() throws Exception {
        for (String kind : new String[] {"RequestCode", "ResponseCode"}) {
            for (Class<?> type = protocolClass(kind); type != Object.class; type = type.getSuperclass()) {
                for (Field field : type.getDeclaredFields()) {
                    if (!Modifier.isStatic(field.getModifiers()) || field.getType() != int.class) continue;
                    System.out.println(kind + "\t" + field.getName() + "\t" + field.getInt(null));
                }
            }
        }
        for (LanguageCode language : LanguageCode.values()) System.out.println("LanguageCode\t" + language + "\t" + language.getCode());
        for (MQVersion.Version version : MQVersion.Version.values()) System.out.println("Version\t" + version + "\t" + version.ordinal());
    }

    static Class<?> protocolClass(String name) throws ClassNotFoundException {
        try {
            return Class.forName("org.apache.rocketmq.remoting.protocol." + name);
        } catch (ClassNotFoundException older) {
            return Class.forName("org.apache.rocketmq.common.protocol." + name);
        }
    }

    /** One line per header class: name, request code ("-" if Java does not tell), then name:type:R|o of each field, separated by tabs. */
    static void describe() throws Exception {
        TreeMap<String, String> lines = new TreeMap<>();
        for (String element : System.getProperty("java.class.path").split(":")) {
            if (!element.matches(".*/rocketmq-(common|remoting)-[^/]*\\.jar")) continue;
            try (JarFile jar = new JarFile(element)) {
                for (JarEntry entry : Collections.list(jar.entries())) {
                    String path = entry.getName();
                    if (!path.endsWith(".class") || !path.contains("/protocol/header/") || path.contains("$")) continue;
                    Class<?> type = Class.forName(path.substring(0, path.length() - 6).replace('/', '.'));
                    if (!CommandCustomHeader.class.isAssignableFrom(type) || Modifier.isAbstract(type.getModifiers())) continue;
                    lines.put(type.getSimpleName(), type.getSimpleName() + "\t" + code(type) + "\t" + String.join("\t", fields(type)));
                }
            }
        }
        lines.values().forEach(System.out::println);
    }

    static String code(Class<?> type) throws Exception {
        for (Annotation annotation : type.getAnnotations()) {
            if (annotation.annotationType().getSimpleName().equals("RocketMQAction"))
                return String.valueOf(annotation.annotationType().getMethod("value").invoke(annotation));
        }
        return "-";
    }

    static List<String> fields(Class<?> type) {
        List<String> found = new ArrayList<>();
        for (Class<?> owner = type; owner != Object.class; owner = owner.getSuperclass()) {
            for (Field field : owner.getDeclaredFields()) {
                if (Modifier.isStatic(field.getModifiers()) || field.getName().startsWith("this")) continue;
                found.add(field.getName() + ":" + field.getType().getSimpleName() + ":" + (field.isAnnotationPresent(CFNotNull.class) ? "R" : "o"));
            }
        }
        Collections.sort(found);
        return found;
    }

    /** The classes of the protocol by their names without package (and "Outer$Inner" for inner ones). */
    static Map<String, String> classNames() throws Exception {
        Map<String, String> found = new HashMap<>();
        for (String element : System.getProperty("java.class.path").split(":")) {
            if (!element.matches(".*/rocketmq-(common|remoting|store|broker)-[^/]*\\.jar")) continue;
            try (JarFile jar = new JarFile(element)) {
                for (JarEntry entry : Collections.list(jar.entries())) {
                    String path = entry.getName();
                    if (path.endsWith(".class")) found.put(path.substring(path.lastIndexOf('/') + 1, path.length() - 6), path.substring(0, path.length() - 6).replace('/', '.'));
                }
            }
        }
        return found;
    }

    /**
     * Lines in: "header" or "body", class name without package, hex of a frame (without its first four bytes) or of a JSON body. Lines out: the same as Java writes
     * it after it has read it, after "ECHO" and in the serialisation of the frame; or "ERROR" and the reason; or "UNKNOWN" for a class that the release
     * does not have. Other lines are Java's log.
     */
    @SuppressWarnings("unchecked")
    static void echo() throws Exception {
        Map<String, String> names = classNames();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split("\t", -1);
            try {
                String name = names.get(words[1]);
                if (name == null) {
                    System.out.println("UNKNOWN");
                    continue;
                }
                Class<?> type = Class.forName(name);
                byte[] data = unhex(words[2]);
                if (words[0].equals("body")) {
                    Object body = RemotingSerializable.decode(data, type);
                    System.out.println("ECHO\t" + hex(RemotingSerializable.encode(body)));
                    continue;
                }
                RemotingCommand asked = RemotingCommand.decode(ByteBuffer.wrap(data));
                SerializeType form = asked.getSerializeTypeCurrentRPC();
                CommandCustomHeader header = asked.decodeCommandCustomHeader((Class<? extends CommandCustomHeader>) type);
                RemotingCommand again = RemotingCommand.createRequestCommand(asked.getCode(), header);
                again.setOpaque(asked.getOpaque());
                again.setFlag(asked.getFlag());
                again.setLanguage(asked.getLanguage());
                again.setVersion(asked.getVersion());
                again.setRemark(asked.getRemark());
                again.setBody(asked.getBody());
                again.setSerializeTypeCurrentRPC(form);
                ByteBuffer frame = again.encode();
                byte[] bytes = new byte[frame.remaining()];
                frame.get(bytes);
                System.out.println("ECHO\t" + hex(bytes));
            } catch (Throwable reason) {
                System.out.println("ERROR\t" + String.valueOf(reason).replace('\n', ' '));
            }
        }
    }

    static String hex(byte[] data) {
        StringBuilder text = new StringBuilder();
        for (byte one : data) text.append(String.format("%02x", one));
        return text.toString();
    }

    static byte[] unhex(String text) {
        byte[] data = new byte[text.length() / 2];
        for (int place = 0; place < data.length; place++) data[place] = (byte) Integer.parseInt(text.substring(2 * place, 2 * place + 2), 16);
        return data;
    }
}
