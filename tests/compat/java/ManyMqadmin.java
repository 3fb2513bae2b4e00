import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.regex.Pattern;
import org.apache.commons.cli.CommandLine;
import org.apache.commons.cli.Options;
import org.apache.commons.cli.PosixParser;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/** Runs commands of RocketMQ's own mqadmin in one JVM, those of a block at the same time: each waits most of its second.
 *  Argument: the name server. A line of standard input is one command, its words separated by tabs; an empty line ends a block.
 *  After the outputs, in the order of the commands, comes a line "===" each; a stack trace is part of the output. */
public class ManyMqadmin {
    private static final int AT_ONCE = 8;
    private static final long APART_MS = 25;  // clients of the same millisecond would have one name
    private static final PrintStream REAL = System.out;
    private static final InheritableThreadLocal<ByteArrayOutputStream> MINE = new InheritableThreadLocal<>();

    private static final class Mine extends OutputStream {
        @Override
        public void write(int one) {
            ByteArrayOutputStream mine = MINE.get();
            if (mine != null) {
                mine.write(one);
            }
        }

        @Override
        public void write(byte[] bytes, int from, int length) {
            ByteArrayOutputStream mine = MINE.get();
            if (mine != null) {
                mine.write(bytes, from, length);
            }
        }
    }

    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.namesrv.addr", args[0]);
        PrintStream mine = new PrintStream(new Mine(), true, "UTF-8");
        System.setOut(mine);
        System.setErr(mine);
        MQAdminStartup.initCommand();
        List<SubCommand> known = new ArrayList<>();
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) && List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                for (Object one : (List<?>) field.get(null)) {
                    known.add((SubCommand) one);
                }
            }
        }
        ExecutorService few = Executors.newFixedThreadPool(AT_ONCE);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        List<Future<String>> block = new ArrayList<>();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            if (line.isEmpty()) {
                print(block);
                continue;
            }
            String[] words = line.split("\t");
            block.add(few.submit(() -> run(known, words)));
            Thread.sleep(APART_MS);
        }
        print(block);
        System.exit(0);
    }

    private static void print(List<Future<String>> block) throws Exception {
        for (Future<String> one : block) {
            REAL.println(one.get());
            REAL.println("===");
            REAL.flush();
        }
        block.clear();
    }

    private static final int TRIES = 5;
    private static final Pattern AGAIN =
        Pattern.compile("has created already|RemotingTimeoutException|RemotingSendRequestException|RemotingConnectException");

    /** Two clients that start in one millisecond have one name, and the second is refused before it does anything;
     *  on a busy machine a request may run out of time. */
    private static String run(List<SubCommand> known, String[] words) throws Exception {
        for (int left = TRIES;; left--) {
            String text = runOnce(known, words);
            if (left == 0 || !AGAIN.matcher(text).find()) {
                return text;
            }
            Thread.sleep((long) (Math.random() * 8 * APART_MS));
        }
    }

    private static String runOnce(List<SubCommand> known, String[] words) throws IOException {
        ByteArrayOutputStream mine = new ByteArrayOutputStream();
        MINE.set(mine);
        try {
            for (SubCommand one : known) {
                if (one.commandName().equalsIgnoreCase(words[0])) {
                    SubCommand fresh = one.getClass().getDeclaredConstructor().newInstance();
                    Options options = fresh.buildCommandlineOptions(ServerUtil.buildCommandlineOptions(new Options()));
                    String[] rest = new String[words.length - 1];
                    System.arraycopy(words, 1, rest, 0, rest.length);
                    CommandLine line = new PosixParser().parse(options, rest);
                    fresh.execute(line, options, null);
                    break;
                }
            }
        } catch (Throwable error) {
            error.printStackTrace();
        } finally {
            MINE.remove();
        }
        return mine.toString("UTF-8");
    }
}
